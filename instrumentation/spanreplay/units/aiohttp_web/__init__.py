"""Records and replays requests of aiohttp's own server, which speaks neither ASGI nor WSGI."""
