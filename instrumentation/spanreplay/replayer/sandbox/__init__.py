"""Prevents a replay from changing anything: files, network, processes."""
