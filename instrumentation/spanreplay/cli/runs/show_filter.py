"""Select the calls for `spanreplay show`: by kind, by outcome, and by a pattern in their content; time-limited."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn

from spanreplay.cli.runs.preview import chunk_text
from spanreplay.cli.runs.runs import parse_json
from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import window
from spanreplay.model.json_text import iter_texts

__all__ = ["Chosen", "Wanted", "choose", "is_failed"]

SEARCH_S_MAX: Final = 10
TEXT_CHARACTERS_MAX: Final = 4_000_000
"""Characters of one request or response that are searched."""
_EXCERPT_CHARACTERS: Final = 100
_STATUS_FAILED: Final = 400


@dataclass(frozen=True)
class Wanted:
    """The criteria for a call; empty fields do not restrict."""

    kinds: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    only_errors: bool = False

    def __bool__(self) -> bool:
        return bool(self.kinds or self.pattern or self.only_errors)


@dataclass(frozen=True)
class Chosen:
    """A selected call, and an excerpt where the pattern matched."""

    call: CallRecord
    excerpt: str = ""


def choose(calls: Iterable[CallRecord], wanted: Wanted) -> list[Chosen]:
    """Select the wanted calls, in order. Raises: ConfigError if the search takes too long."""
    found = []
    with _limited():
        for call in calls:
            if wanted.kinds and call.kind not in wanted.kinds:
                continue
            if wanted.only_errors and not is_failed(call):
                continue
            excerpt = "" if wanted.pattern is None else _find(wanted.pattern, call)
            if excerpt is not None:
                found.append(Chosen(call, excerpt))
    return found


def is_failed(call: CallRecord) -> bool:
    """Whether a call raised, got an error as its answer, or never ended."""
    if call.outcome in (Outcome.ERROR.value, Outcome.OPEN.value) or call.meta.get("error"):
        return True
    response = parse_json(call.response)
    status = response.get("status") if isinstance(response, dict) and "chunks" in response else None
    return isinstance(status, int) and status >= _STATUS_FAILED


def _texts(call: CallRecord) -> Iterator[tuple[str, str]]:
    """The texts to search: first as people read them, then as stored JSON."""
    request, response = parse_json(call.request), parse_json(call.response)
    yield "name", call.name
    for text in iter_texts(request):
        yield "request", text
    yield "response", chunk_text(response)
    for text in iter_texts(response):
        yield "response", text
    yield "request", call.request
    yield "response", call.response


def _find(pattern: re.Pattern[str], call: CallRecord) -> str | None:
    for side, text in _texts(call):
        match = pattern.search(text[:TEXT_CHARACTERS_MAX])
        if match is not None:
            return f"{side}: {window(text, match.start(), _EXCERPT_CHARACTERS)}"
    return None


@contextmanager
def _limited() -> Iterator[None]:
    """Limit the time of a search: a pattern can run for ever, and only a signal interrupts the regex engine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise ConfigError(f"the search took longer than {SEARCH_S_MAX} s", hint="give --grep a simpler pattern")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SEARCH_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
