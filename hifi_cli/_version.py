"""The version, which modules below the package's root read."""

__version__ = "0.2.0.dev0"
