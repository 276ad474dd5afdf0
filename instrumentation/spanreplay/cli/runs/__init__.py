"""Find, select and show runs."""
