"""The command in hints that installs spanreplay and its extras, from its public repository."""

from __future__ import annotations

from typing import Final

__all__ = ["install_command"]

_REPOSITORY: Final = "git+https://github.com/spanreplay/spanreplay"


def install_command(extras: str = "", python: str = "") -> str:
    """The command line; `extras` are names separated by commas, `python` the interpreter to install into."""
    name = f"spanreplay[{extras}]" if extras else "spanreplay"
    return f"{f'{python} -m ' if python else ''}pip install '{name} @ {_REPOSITORY}'"
