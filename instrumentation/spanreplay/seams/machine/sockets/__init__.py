"""Seams of connectionless sockets."""
