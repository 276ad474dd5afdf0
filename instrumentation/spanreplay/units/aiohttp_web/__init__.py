"""Requests of aiohttp's own server, which speaks neither ASGI nor WSGI: what comes in, what goes out, their replay."""
