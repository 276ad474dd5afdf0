"""A run in the process of the agent: its calls, lanes and order, recorded or replayed."""
