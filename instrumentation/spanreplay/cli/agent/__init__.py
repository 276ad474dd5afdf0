"""Starts an agent as a child of the command, and says how it ended."""
