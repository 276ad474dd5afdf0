"""Seams of HTTP, gRPC and websocket clients, one file for each library."""
