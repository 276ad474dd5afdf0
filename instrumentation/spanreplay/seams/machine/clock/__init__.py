"""Seams of time and of random values."""
