"""Seams of Kafka's clients: a message that is sent, its delivery, and messages that are taken are calls."""
