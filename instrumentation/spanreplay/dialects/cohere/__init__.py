"""Protocols of Cohere."""
