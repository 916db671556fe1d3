"""The ``ggs`` command."""
