"""Requests and responses on the wire, the same for every client library."""
