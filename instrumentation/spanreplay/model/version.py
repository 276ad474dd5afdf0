"""The version, stated once more for code that must not import package metadata."""

VERSION = "0.1.0"
