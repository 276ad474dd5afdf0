"""Seams of sockets without a connection."""
