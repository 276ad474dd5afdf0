"""Units: messages that a loop of the program's own takes from a broker."""
