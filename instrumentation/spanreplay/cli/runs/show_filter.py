"""Which calls `spanreplay show` shows: by kind, by outcome, and by a pattern in what was said; bounded in time."""

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
"""Characters of one request or response that are looked through."""
_EXCERPT_CHARACTERS: Final = 100
_STATUS_FAILED: Final = 400


@dataclass(frozen=True)
class Wanted:
    """What a call has to be; empty fields do not restrict."""

    kinds: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    only_errors: bool = False

    def __bool__(self) -> bool:
        return bool(self.kinds or self.pattern or self.only_errors)


@dataclass(frozen=True)
class Chosen:
    """A call that is wanted, and where the pattern was found in it."""

    call: CallRecord
    excerpt: str = ""


def choose(calls: Iterable[CallRecord], wanted: Wanted) -> list[Chosen]:
    """The wanted calls in their order. Raises: ConfigError if the pattern takes too long."""
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
    """Whether a call raised, was answered with an error, or never ended."""
    if call.outcome in (Outcome.ERROR.value, Outcome.OPEN.value) or call.meta.get("error"):
        return True
    response = parse_json(call.response)
    status = response.get("status") if isinstance(response, dict) and "chunks" in response else None
    return isinstance(status, int) and status >= _STATUS_FAILED


def _texts(call: CallRecord) -> Iterator[tuple[str, str]]:
    """What can be looked through: as people read it, then as the JSON that it is stored as."""
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
    """End a search that takes too long: a pattern can take for ever, and the engine only hears signals."""
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
