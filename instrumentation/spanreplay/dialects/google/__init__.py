"""Protocols of Gemini and Vertex AI."""
