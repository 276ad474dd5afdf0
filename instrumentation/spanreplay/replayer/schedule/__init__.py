"""Gives the threads and tasks of a replay the order that they had when recorded."""
