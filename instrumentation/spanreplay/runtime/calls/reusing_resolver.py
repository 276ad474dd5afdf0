"""The resolver of a run that takes answers of models from earlier runs where the same was asked.

SPANREPLAY_REUSE says of which calls, SPANREPLAY_REUSE_TTL for how long, SPANREPLAY_REUSE_SCOPE for whom. Within a run
each kept answer is served once, and never to the run that it comes from: N equal requests get N answers, or go live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard
from spanreplay.model.call import CallRecord, Kind, Outcome
from spanreplay.model.errors import ConfigError
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.kept_answers import Answer, KeptAnswers
from spanreplay.redact import TOKEN
from spanreplay.runtime.calls.live_resolver import LiveResolver
from spanreplay.runtime.edits.selector import Selector, parse_selector
from spanreplay.runtime.wire.http_reply import decode_reply

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["REUSED_FROM", "ReusingResolver", "parse_reuse", "read_reuse"]

logger = logging.getLogger(__name__)

REUSED_FROM: Final = "reused_from"
"""Member of a call's meta: the run whose answer it was given."""
SETTING: Final = "SPANREPLAY_REUSE"
TTL_SETTING: Final = "SPANREPLAY_REUSE_TTL"
SCOPE_SETTING: Final = "SPANREPLAY_REUSE_SCOPE"
_KINDS: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value, Kind.RETRIEVER.value})
_SPENT: Final = ("tokens", "cost")
"""Beginnings of the names of meta members that say what a call has used up."""


@dataclass(frozen=True)
class Reuse:
    """The rules of one process."""

    selectors: tuple[Selector, ...]
    ttl_ns: int
    scope: str

    def covers(self, boundary: str, lane: str) -> bool:
        """Whether a call's answer may be taken from an earlier run."""
        return any(selector.matches(boundary, lane) for selector in self.selectors)


def parse_reuse(text: str, ttl: str, scope: str) -> Reuse | None:
    """Parse the settings; None if nothing is reused. Raises: ConfigError."""
    if not text.strip():
        return None
    selectors = tuple(parse_selector(word) for word in text.split(","))
    for selector in selectors:
        if selector.is_numbered:
            raise ConfigError(f"{SETTING}: {selector} counts calls", hint="name a kind, and a model: llm:gpt-*")
        if selector.boundary.partition(":")[0] not in _KINDS | {"*"}:
            hint = f"the kinds are {', '.join(sorted(_KINDS))}, for example llm:*"
            raise ConfigError(f"{SETTING}: {selector} is no call to a model", hint=hint)
    try:
        ttl_ns = round(config.parse_span(ttl).total_seconds() * 1e9)
    except ValueError as exc:
        raise ConfigError(f"{TTL_SETTING}: {exc}") from None
    return Reuse(selectors, ttl_ns, scope)


def read_reuse() -> Reuse | None:
    """The rules of this process; if a setting is unusable, an error is logged once and nothing is reused."""
    text = config.read_setting(SETTING)
    return _read(text, config.read_setting(TTL_SETTING), config.read_setting(SCOPE_SETTING)) if text else None


@cache
def _read(text: str, ttl: str, scope: str) -> Reuse | None:
    try:
        return parse_reuse(text, ttl, scope)
    except ConfigError as exc:
        logger.error("%s; no answer is reused%s", exc, f" ({exc.hint})" if exc.hint else "")
        return None


@cache
def _kept_in(directory: Path) -> KeptAnswers:
    return KeptAnswers(directory)


class ReusingResolver(LiveResolver):
    """Serves kept answers, makes all other calls, and keeps their answers. Our own failures make the call live."""

    def __init__(self, run: Any, reuse: Reuse) -> None:
        super().__init__(run)
        self._reuse = reuse
        self._kept = _kept_in(config.read_data_dir())
        self._used: set[tuple[str, int]] = set()
        self._lock = make_lock()

    def resolve(self, crossing: Any) -> None:
        """Serve a call from an earlier run if one has asked the same."""
        if self._covers(crossing):
            guard.guarded("looking for an earlier answer", self._look, crossing)

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """Keep the answer of a call that was made."""
        if outcome is Outcome.OK and self._covers(crossing):
            guard.guarded("keeping an answer", self._keep, crossing, response)

    def _covers(self, crossing: Any) -> bool:
        spec = crossing.spec
        return spec.kind in _KINDS and self._reuse.covers(crossing.boundary, crossing.lane.path)

    def _look(self, crossing: Any) -> None:
        with self._lock:
            answer = self._kept.find(self._ask(crossing), time.time_ns() - self._reuse.ttl_ns, self._used)
            if answer is None:
                return
            self._used.add((answer.run_id, answer.seq))
        if not _is_whole(answer.response, answer.meta):
            return
        meta = {name: value for name, value in answer.meta.items() if not name.startswith(_SPENT)}
        crossing.served = replace(
            _ANSWERED,
            run_id=answer.run_id,
            seq=answer.seq,
            kind=crossing.spec.kind,
            name=crossing.spec.name,
            response=answer.response,
            start_ns=answer.start_ns,
            end_ns=answer.end_ns,
            meta={**meta, REUSED_FROM: answer.run_id},
        )
        crossing.is_reused = True
        self._run.count("reused")

    def _keep(self, crossing: Any, response: str) -> None:
        if not _is_whole(response, crossing.spec.meta):
            return
        run, now = crossing.run, time.time_ns()
        who = run.who
        answer = Answer(
            run.run_id, crossing.seq, crossing.start_ns, now, response, dict(crossing.spec.meta), who.user, who.session
        )
        with self._lock:
            self._used.add((answer.run_id, answer.seq))
        self._kept.keep(self._ask(crossing), answer, now - self._reuse.ttl_ns)

    def _ask(self, crossing: Any) -> str:
        """Who asks what, as text: equal for two requests of which one may be given the other's answer."""
        run, spec = crossing.run, crossing.spec
        whom = {"app": "", "user": run.who.user, "session": run.who.session}[self._reuse.scope]
        address = spec.request.partition(',"headers":')[0]
        return "\n".join((run.app, self._reuse.scope, whom, address, spec.keyspec, crossing.key_hex))


_ANSWERED: Final = CallRecord("", 0, "", "", "", 0, "", "", "", outcome=Outcome.OK.value)


def _is_whole(response: str, meta: Mapping[str, Any]) -> bool:
    """Whether this is a whole answer to an HTTP request that hides nothing.

    A stream is whole, too, if the agent stopped reading it after the last word of the model.
    """
    if TOKEN.search(response.encode("utf-8", "surrogatepass")):
        return False
    try:
        reply = decode_reply(response)
    except ValueError:
        return False
    is_read = reply.end != "closed" or bool(meta.get("finish_reason"))
    return 200 <= reply.status < 300 and reply.error is None and is_read and not reply.hops
