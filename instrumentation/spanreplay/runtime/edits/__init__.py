"""Edits that a plan makes to a call's request or response."""
