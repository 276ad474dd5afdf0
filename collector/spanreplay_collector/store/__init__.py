"""The store: ClickHouse, embedded or a server."""
