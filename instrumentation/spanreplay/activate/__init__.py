"""Starts recording or a replay in a process: the parts of the program are put together here, and nowhere else."""
