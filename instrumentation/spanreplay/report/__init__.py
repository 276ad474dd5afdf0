"""Render verdicts: text for people, JSON (`divergence/1`) for machines. Pure functions."""
