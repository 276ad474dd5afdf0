"""Seam of kombu: messages published, taken and acknowledged are calls, whichever broker is below."""
