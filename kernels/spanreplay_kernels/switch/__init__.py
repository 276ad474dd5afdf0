"""Switches torch between its own kernels and the batch-invariant ones."""
