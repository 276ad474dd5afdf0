"""Protocols of Amazon Bedrock."""
