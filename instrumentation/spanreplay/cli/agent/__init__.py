"""Start an agent as a child process, and tell how it ended."""
