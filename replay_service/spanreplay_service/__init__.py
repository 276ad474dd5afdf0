"""Gives recorded runs back over gRPC."""
