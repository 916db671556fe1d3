"""The ``pai`` command."""
