"""The version, below everything: whoever says it need not import the package's face."""

__version__ = "0.1.0"
