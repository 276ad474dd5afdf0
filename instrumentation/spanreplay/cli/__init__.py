"""The `spanreplay` command. Everything is imported when needed, so that `--help` is quick."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    from spanreplay.cli.app import app
    from spanreplay.cli.terminal import make_streams_tolerant

    make_streams_tolerant()
    app.main(prog_name="spanreplay")
    raise SystemExit(0)
