"""One call across a boundary, from its beginning to its end."""
