"""Find I/O that leaves the process outside every seam."""
