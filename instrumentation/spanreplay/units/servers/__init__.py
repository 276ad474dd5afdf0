"""HTTP servers: where each one calls its application, and how to replay it without a port."""
