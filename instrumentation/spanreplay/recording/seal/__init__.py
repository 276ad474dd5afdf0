"""Hashes that make a run's completeness provable."""
