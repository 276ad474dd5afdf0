"""Values that every other package uses: calls, keys, settings, errors, ids. Pure; imports no package above it."""
