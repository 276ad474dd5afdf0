"""Cells of notebooks and of IPython: what a cell is given, what it displays, how a replay runs it without a client."""
