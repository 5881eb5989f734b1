"""The version of the package, for peers: `importlib.metadata` takes 25 ms to import."""

VERSION = "0.1.0"
