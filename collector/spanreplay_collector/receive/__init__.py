"""The ways into the collector: OTLP over HTTP and gRPC."""
