"""Commands about how long runs are kept."""
