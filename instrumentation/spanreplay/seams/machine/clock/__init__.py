"""Seams of time and random values."""
