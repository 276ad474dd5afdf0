"""Commands that compare what was recorded."""
