"""The version of this distribution, alone so that every module may import it."""

__version__ = "0.1.0"
