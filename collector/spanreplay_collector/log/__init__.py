"""The durable log in front of the store."""
