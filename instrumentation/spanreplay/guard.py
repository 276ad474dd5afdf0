"""Keeps our own failures out of the agent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger("spanreplay")
T = TypeVar("T")
_CAUSES_MAX = 200
_seen: set[tuple[str, str]] = set()
failures: dict[str, int] = {}
"""Part → how often something of ours failed in this process; goes into the manifest."""


def _is_strict() -> bool:
    return "PYTEST_CURRENT_TEST" in os.environ and os.environ.get("SPANREPLAY_GUARD") != "production"


def report_failure(part: str, exc: BaseException) -> None:
    """Count a failure of ours and log it once per cause; the message carries no values of the agent's."""
    failures[part] = failures.get(part, 0) + 1
    if _is_strict():
        raise exc
    cause = (part, type(exc).__name__)
    if cause in _seen or len(_seen) >= _CAUSES_MAX:
        return
    _seen.add(cause)
    at = exc.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f"{at.tb_frame.f_code.co_name}:{at.tb_lineno}" if at is not None else "?"
    missing = f" {exc.name}" if isinstance(exc, ImportError) and exc.name else ""
    logger.error(
        "%s failed (%s%s at %s); the agent runs on, this is counted in the run's manifest",
        part,
        type(exc).__name__,
        missing,
        place,
    )


def guarded(part: str, function: Callable[..., T], *args: Any) -> T | None:
    """Call something of ours; a failure is reported and gives None. `ReplayMiss` passes."""
    try:
        return function(*args)
    except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
        report_failure(part, exc)
        return None


def write_stderr(line: str) -> None:
    """One line to standard error, whatever state it is in."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
