"""Seam of aio-pika: messages published, taken and acknowledged are calls, above aiormq's connections."""
