"""Seams of stores that are servers, above their clients' connections."""
