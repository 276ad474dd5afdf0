"""The operations, one a file, each in one order: its definition in plain PyTorch, the kernels, the launcher."""
