"""The table of report formats: a verdict goes in, text comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spanreplay.report import github, html, junit, sarif, text
from spanreplay.report.json import dump
from spanreplay.report.shape import Verdict

__all__ = ["FORMATS", "render"]

FORMATS: Final[dict[str, Callable[[Verdict, str], str]]] = {
    "text": lambda verdict, _: text.render(verdict).plain + "\n",
    "json": lambda verdict, _: dump(verdict),
    "junit": lambda verdict, _: junit.render(verdict),
    "sarif": sarif.render,
    "github": github.render,
    "html": lambda verdict, _: html.render(verdict),
}


def render(name: str, verdict: Verdict, folder: str = "") -> str:
    """The verdict in that format; `folder` is the agent's directory, relative to the repository."""
    return FORMATS[name](verdict, folder)
