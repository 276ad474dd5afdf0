"""Values that every other package uses: calls, keys, settings, errors, ids. Pure; imports nothing of ours above it."""
