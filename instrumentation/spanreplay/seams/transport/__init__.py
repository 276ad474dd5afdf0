"""Seams of HTTP, gRPC and websocket clients, one file per library."""
