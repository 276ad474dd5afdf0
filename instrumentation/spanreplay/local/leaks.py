"""I/O that a recorded run did outside of every boundary, by call site: what a replay could not repeat.

Each leak goes into the run's manifest under `leaks`; one that makes the run impossible to replay is a hole too, so
that the run says "not replayable because db.py:41 opened a socket outside of every boundary".
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from spanreplay import ids
from spanreplay.crossing import is_plumbing, is_suppressed
from spanreplay.family import starting
from spanreplay.lanes import current_crossing
from spanreplay.local.origin import FRAMES_MAX, is_below
from spanreplay.run import active_run

if TYPE_CHECKING:
    from spanreplay.run import Run

LEAKS_MAX: Final = 200
DETAIL_CHARACTERS_MAX: Final = 200
_TELEMETRY: Final = (
    "agentops",
    "agno/api",
    "braintrust",
    "coverage",
    "ddtrace",
    "debugpy",
    "elasticapm",
    "langfuse",
    "langsmith",
    "lmnr",
    "logfire",
    "newrelic",
    "openlit",
    "opentelemetry",
    "opik",
    "posthog",
    "pydevd",
    "scarf",
    "sentry_sdk",
    "statsd",
    "traceloop",
    "wandb",
    "weave",
)
"""Packages that report about the agent instead of working for it."""
_HARMLESS: Final = frozenset({"platform", "ctypes/util", "uuid", "sysconfig", "_osx_support", "_sysconfigdata"})
"""Modules of the standard library that start a program only to learn what machine this is."""
SAID: Final = {
    "socket": "opened a socket to {detail} outside of every boundary",
    "process": "started {detail} outside of every boundary ({what})",
    "file": "read {detail} in a way that is not recorded ({what})",
    "clock": "read the clock with {what}, which is not recorded",
    "random": "drew random bytes with {what}, which is not recorded",
    "environment": "read {detail} with {what}, which is not as recorded",
    "native": "called into {detail} with {what}, which is not recorded",
}
"""Kind of leak → what a user is told, after its place."""


@dataclass
class Leak:
    """One kind of I/O at one place."""

    kind: str
    what: str
    detail: str
    code: str
    is_hole: bool
    count: int = 1

    def say(self) -> str:
        """One sentence without a full stop."""
        place = self.code or "a library's own thread"
        return f"{place} {SAID[self.kind].format(detail=self.detail, what=self.what)}"


class Leaks:
    """The leaks of one run, at most LEAKS_MAX, one a call site. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[tuple[str, str], Leak] = {}
        self._lock = threading.RLock()

    def add(self, kind: str, what: str, detail: str, code: str, *, is_hole: bool) -> None:
        """Note one leak; `detail` is redacted here, and is no more than a name."""
        key = (kind, code or detail)
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                known.count += 1
                return
            if len(self._found) >= LEAKS_MAX:
                self._run.count("leaks_dropped")
                return
            shown = self._run.redactor.text(strip_query(detail))[:DETAIL_CHARACTERS_MAX]
            leak = self._found[key] = Leak(kind, what, shown, code, is_hole)
        if is_hole:
            self._run.hole(leak.say())

    def describe(self) -> list[dict[str, Any]]:
        """For the manifest, in the order of their first appearance."""
        with self._lock:
            return [{**vars(leak), "said": leak.say()} for leak in self._found.values()]

    def for_manifest(self) -> dict[str, Any]:
        """Members of the manifest."""
        rows = self.describe()
        return {"leaks": rows} if rows else {}


def strip_query(detail: str) -> str:
    """A name without what may be secret in it: the user, the query and the fragment of a URL."""
    if "://" not in detail:
        return detail
    parts = urlsplit(detail)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# ── Who did it ──────────────────────────────────────────────────────────────────────────────────────
class _Quiet(threading.local):
    depth = 0


_quiet = _Quiet()


class unwatched:  # noqa: N801 -- reads as a statement: `with unwatched():`
    """A block of ours, of this thread, whose I/O is no leak: it belongs to a call that has just been recorded."""

    def __enter__(self) -> None:
        _quiet.depth += 1

    def __exit__(self, *exc_info: object) -> None:
        _quiet.depth -= 1


def is_unwatched() -> bool:
    """Whether this thread is inside of such a block."""
    return _quiet.depth > 0


def leaking_run() -> Run | None:
    """The recorded run that I/O of the running code leaks from; None inside of a call and in our own plumbing."""
    run = active_run()
    if run is None or run.leaks is None or _quiet.depth:
        return None
    if current_crossing(run.root_lane) is not None or is_suppressed() or is_plumbing(run) or starting.is_now:
        return None
    return run


def is_telemetry_stack(frame: FrameType | None) -> bool:
    """Whether code on this stack, up to the agent's, reports about the agent."""
    for _ in range(FRAMES_MAX):
        if frame is None or ids.is_agent_file(frame.f_code.co_filename):
            return False
        if is_below(frame.f_code.co_filename, _TELEMETRY):
            return True
        frame = frame.f_back
    return False


def is_harmless_spawn(frame: FrameType | None) -> bool:
    """Whether a program is started only to learn what machine this is."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        if ids.is_agent_file(name):
            return False
        if ids.is_stdlib_file(name) and name.removesuffix(".py").endswith(tuple(f"/{each}" for each in _HARMLESS)):
            return True
        frame = frame.f_back
    return False


def is_importing(frame: FrameType | None) -> bool:
    """Whether code is being loaded here, for an `import` of the agent's or of nobody's."""
    for _ in range(FRAMES_MAX):
        if frame is None or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if ids.is_agent_file(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return False


def note(kind: str, what: str, detail: str, *, is_hole: bool = True) -> None:
    """Note a leak of the running code, if it is one; the caller is a patched function or an audit listener."""
    run = leaking_run()
    if run is None or run.leaks is None:
        return
    frame = sys._getframe(1)
    if is_telemetry_stack(frame) or (kind == "process" and is_harmless_spawn(frame)):
        return
    run.leaks.add(kind, what, detail, ids.find_caller(2), is_hole=is_hole)
