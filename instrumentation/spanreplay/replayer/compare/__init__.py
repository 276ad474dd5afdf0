"""Compares a replay with its recording and finds the cause of each difference."""
