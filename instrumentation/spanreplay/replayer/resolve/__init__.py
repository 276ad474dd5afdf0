"""Finds the recorded answer of each call."""
