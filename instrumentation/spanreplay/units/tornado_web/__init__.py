"""Units of Tornado's HTTP server."""
