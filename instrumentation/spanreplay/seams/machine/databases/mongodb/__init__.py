"""Seam of pymongo: commands as calls, documents as JSON values, and servers that a replay never asks."""
