"""Requests and websocket sessions of Sanic's own server, and their replay."""
