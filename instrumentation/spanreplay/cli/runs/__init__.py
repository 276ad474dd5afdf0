"""Names, finds and shows runs."""
