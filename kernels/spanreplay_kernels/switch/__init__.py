"""Switches torch to batch-invariant kernels and back."""
