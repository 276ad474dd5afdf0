"""Commands that replay a run many times, each time with other answers."""
