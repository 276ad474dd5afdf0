"""How to install spanreplay and its extras, as hints say it: by its repository, where a stranger finds it."""

from __future__ import annotations

from typing import Final

__all__ = ["install_command"]

_REPOSITORY: Final = "git+https://github.com/spanreplay/spanreplay"


def install_command(extras: str = "", python: str = "") -> str:
    """The command line; `extras` are names with commas, `python` the interpreter that is to have it."""
    name = f"spanreplay[{extras}]" if extras else "spanreplay"
    return f"{f'{python} -m ' if python else ''}pip install '{name} @ {_REPOSITORY}'"
