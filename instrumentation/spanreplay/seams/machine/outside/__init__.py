"""Finds what leaves the process outside of every seam."""
