"""The operations, one per file: the definition in plain PyTorch, the kernels and the launcher."""
