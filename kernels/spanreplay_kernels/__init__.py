"""Batch-invariant kernels for self-hosted models; torch and triton only."""
