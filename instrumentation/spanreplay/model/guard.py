"""Keeps our own failures out of the agent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import escape

logger = logging.getLogger("spanreplay")
T = TypeVar("T")
_CAUSES_MAX = 200
_seen: set[tuple[str, str]] = set()
failures: dict[str, int] = {}
"""Part → number of our failures in this process; goes into the manifest."""


def _is_strict() -> bool:
    return "PYTEST_CURRENT_TEST" in os.environ and os.environ.get("SPANREPLAY_GUARD") != "production"


def report_failure(part: str, exc: BaseException) -> None:
    """Count a failure of ours and log it once per cause; the message contains no values of the agent."""
    failures[part] = failures.get(part, 0) + 1
    if _is_strict():
        raise exc
    cause = (part, type(exc).__name__)
    if cause in _seen or len(_seen) >= _CAUSES_MAX:
        return
    _seen.add(cause)
    if isinstance(exc, ConfigError):  # about a setting or a file of ours: its own message says what to do
        logger.error("%s failed: %s%s; the agent runs on", part, exc, f" ({exc.hint})" if exc.hint else "")
        return
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


def report_missing(part: str, message: str) -> None:
    """Count that a part of Python or of a library is not as expected, and log it once per part."""
    failures[part] = failures.get(part, 0) + 1
    cause = (part, "missing")
    if cause not in _seen and len(_seen) < _CAUSES_MAX:
        _seen.add(cause)
        logger.error("%s; the agent runs on, the run is incomplete", message)


def guarded(part: str, function: Callable[..., T], *args: Any) -> T | None:
    """Call a function of ours; report a failure and return None. `ReplayMiss` propagates."""
    try:
        return function(*args)
    except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
        report_failure(part, exc)
        return None


def write_stderr(line: str) -> None:
    """Write one line to standard error, whatever state it is in; control characters are escaped."""
    try:
        sys.stderr.write(escape(line, keep_lines=True) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
