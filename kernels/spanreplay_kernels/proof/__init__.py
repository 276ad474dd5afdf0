"""Proofs that kernels are batch-invariant: certificates, fingerprints, compiled kernels."""
