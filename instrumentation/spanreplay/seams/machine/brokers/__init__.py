"""Seams of clients of message brokers, above their connections."""
