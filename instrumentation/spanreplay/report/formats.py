"""The table of report formats: functions from verdict to text. A format's module is imported on its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spanreplay.report.shape import Verdict

__all__ = ["FORMATS", "render"]


def _text(verdict: Verdict, _: str) -> str:
    from spanreplay.report import text

    return text.render(verdict).plain + "\n"


def _json(verdict: Verdict, _: str) -> str:
    from spanreplay.report.json import dump

    return dump(verdict)


def _junit(verdict: Verdict, _: str) -> str:
    from spanreplay.report import junit

    return junit.render(verdict)


def _sarif(verdict: Verdict, folder: str) -> str:
    from spanreplay.report import sarif

    return sarif.render(verdict, folder)


def _github(verdict: Verdict, folder: str) -> str:
    from spanreplay.report import github

    return github.render(verdict, folder)


def _html(verdict: Verdict, _: str) -> str:
    from spanreplay.report import html

    return html.render(verdict)


FORMATS: Final[dict[str, Callable[[Verdict, str], str]]] = {
    "text": _text,
    "json": _json,
    "junit": _junit,
    "sarif": _sarif,
    "github": _github,
    "html": _html,
}


def render(name: str, verdict: Verdict, folder: str = "") -> str:
    """Render a verdict in a format; `folder` is the agent's directory, relative to the repository."""
    return FORMATS[name](verdict, folder)
