"""The order of events in a run."""
