"""Seams of agent frameworks and of their tools."""
