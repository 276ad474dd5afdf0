"""Serves recorded runs over gRPC."""
