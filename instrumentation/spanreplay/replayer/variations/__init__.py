"""A recording with other answers: which fields could change, how, and the smallest change that still matters; pure."""
