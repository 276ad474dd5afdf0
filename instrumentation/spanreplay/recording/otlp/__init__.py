"""Conversion between calls and OTLP spans, as protobuf and as JSON."""
