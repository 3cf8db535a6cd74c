"""The version, in a file of its own so that packaging and fingerprints read it without importing the package."""

__version__ = "0.2.0"
