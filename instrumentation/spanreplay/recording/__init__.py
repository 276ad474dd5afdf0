"""Recordings at rest: the spool, `.replay` files, JSON lines, a catalog of runs, a remote service."""
