"""Cells of notebooks and IPython: their input, their display output, and how a replay runs them without a client."""
