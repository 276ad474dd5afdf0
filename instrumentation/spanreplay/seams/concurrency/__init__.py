"""Seams of tasks, threads, pools and locks."""
