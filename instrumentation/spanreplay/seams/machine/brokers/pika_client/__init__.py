"""Seam of pika's blocking connections: what the broker sends during a method is recorded with its call."""
