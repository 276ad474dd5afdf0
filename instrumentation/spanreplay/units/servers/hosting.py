"""Code shared by the ASGI servers."""

from __future__ import annotations

from typing import Any

from spanreplay.units.asgi import App, AsgiUnits
from spanreplay.units.play import is_replay

__all__ = ["make_units"]


def make_units(app: App, stated: Any) -> App:
    """Make each request of an application a unit; `stated`: the server's argument, a path or the application."""
    if is_replay() or isinstance(app, AsgiUnits):
        return app
    return AsgiUnits(app, stated if isinstance(stated, str) else "")
