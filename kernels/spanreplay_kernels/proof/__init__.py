"""Evidence that kernels are batch-invariant: certificates, fingerprints, checks of compiled kernels."""
