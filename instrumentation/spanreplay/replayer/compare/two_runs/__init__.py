"""Compares two recorded runs: pairs of calls, the first pair that differs, and the origin of its input."""
