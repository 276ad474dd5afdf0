"""Sampling of whole units: the rules, the limits, the memory that holds a unit until its end, the counts."""
