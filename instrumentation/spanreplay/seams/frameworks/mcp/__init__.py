"""Seams: client sessions of the Model Context Protocol, and their transports."""
