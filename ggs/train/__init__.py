"""The trainer behind ``ggs train`` and ``entrypoint.py``."""
