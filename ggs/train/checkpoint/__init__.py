"""Checkpoints: written in the background, resumed from on restart, on any number of workers."""
