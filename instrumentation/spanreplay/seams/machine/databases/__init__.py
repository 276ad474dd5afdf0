"""Seams of databases."""
