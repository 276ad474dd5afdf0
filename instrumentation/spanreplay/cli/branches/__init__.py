"""Commands that go on live from within a recorded run: fork, splice, sweep."""
