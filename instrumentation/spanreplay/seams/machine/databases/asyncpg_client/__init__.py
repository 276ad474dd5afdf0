"""Seam: asyncpg, by statement; in a replay no connection is opened."""
