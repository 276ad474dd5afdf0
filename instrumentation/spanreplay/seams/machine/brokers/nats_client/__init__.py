"""Seam of nats-py: messages published, requested and delivered are calls, above its connections."""
