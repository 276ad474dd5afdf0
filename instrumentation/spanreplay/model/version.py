"""The version, repeated here for code that must not import package metadata."""

VERSION = "0.1.0"
