"""Seams of files."""
