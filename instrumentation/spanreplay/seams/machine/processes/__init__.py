"""Seams of programs that the agent starts."""
