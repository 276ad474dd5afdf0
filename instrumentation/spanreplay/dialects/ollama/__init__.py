"""Protocols of Ollama."""
