"""Two recorded runs beside each other: their calls in pairs, the first that differs, where its input comes from."""
