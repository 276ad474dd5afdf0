"""Protocols of OpenAI, and of everything that speaks them."""
