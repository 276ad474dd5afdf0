"""The client of the replay service."""
