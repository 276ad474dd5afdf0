"""Spans of OTLP, as protobuf and as JSON, to calls and back."""
