"""Plans of kernel launches: tiles, architectures, operands."""
