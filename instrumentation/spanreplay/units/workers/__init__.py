"""The rows of HTTP servers: where each calls its application, and how it is replayed without a port."""
