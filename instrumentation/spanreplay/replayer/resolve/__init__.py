"""Finds the recorded answer for each call."""
