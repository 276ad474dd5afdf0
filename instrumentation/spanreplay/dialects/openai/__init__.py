"""Protocols of OpenAI and compatible providers."""
