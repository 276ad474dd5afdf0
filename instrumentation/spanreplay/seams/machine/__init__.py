"""Seams of the machine: clock, random values, files, databases, programs and sockets."""
