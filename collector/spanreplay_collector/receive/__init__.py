"""Receivers of the collector: OTLP over HTTP and gRPC."""
