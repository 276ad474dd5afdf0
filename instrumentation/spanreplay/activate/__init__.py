"""Starts recording or a replay in a process: the only place where the parts of the program are put together."""
