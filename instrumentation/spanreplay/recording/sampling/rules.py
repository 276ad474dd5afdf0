"""Which units of a process are kept: the rules of SPANREPLAY_SAMPLE and SPANREPLAY_SAMPLE_KEEP_USERS.

rules    = "always" | rule *("," rule)      each kind of rule at most once; a unit is kept if any rule keeps it
rule     = ratio | "errors" | "call-errors" | "slow:" duration
ratio    = decimal from 0 to 1              of the traces, decided by the trace id as OpenTelemetry's
                                            TraceIdRatioBased does: 0.1, 1e-3
duration = decimal ("ms" | "s" | "m")       500ms, 2s, 1.5m
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from spanreplay.model import config
from spanreplay.model.errors import ConfigError

__all__ = ["ALWAYS", "Facts", "Rules", "parse_rules", "read_rules"]

logger = logging.getLogger(__name__)

SETTING: Final = "SPANREPLAY_SAMPLE"
USERS_SETTING: Final = "SPANREPLAY_SAMPLE_KEEP_USERS"
ALWAYS_WORD: Final = "always"
ERRORS, CALL_ERRORS, SLOW, RATIO, USERS = "errors", "call-errors", "slow", "ratio", "users"
ALLOWED: Final = (
    "always, or one or more of errors, call-errors, slow:2s (ms, s or m) and a ratio from 0 to 1, separated by commas"
)
_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m)")
_RATIO: Final = re.compile(r"\d{1,3}(?:\.\d{1,18})?(?:e-\d{1,2})?|\.\d{1,18}", re.ASCII | re.IGNORECASE)
_NANOSECONDS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_TRACE_BITS: Final = 64
"""Number of low bits of a trace id that OpenTelemetry's sampler uses."""


@dataclass(frozen=True)
class Facts:
    """The facts known about a unit so far."""

    elapsed_ns: int = 0
    has_failed: bool = False
    has_failed_call: bool = False
    user: str = ""
    trace_id: int | None = None
    """The trace id that decides for a ratio; None while it may still change."""


@dataclass(frozen=True)
class Rules:
    """The rules of one process."""

    text: str = ALWAYS_WORD
    is_always: bool = True
    errors: bool = False
    call_errors: bool = False
    slow_ns: int | None = None
    ratio: float | None = None
    users: frozenset[str] = frozenset()

    def find_reasons(self, facts: Facts) -> tuple[str, ...]:
        """The names of the rules that keep a unit; empty if none does so far. Pure."""
        if self.is_always:
            return (ALWAYS_WORD,)
        held = (
            (USERS, facts.user in self.users),
            (ERRORS, self.errors and facts.has_failed),
            (CALL_ERRORS, self.call_errors and facts.has_failed_call),
            (SLOW, self.slow_ns is not None and facts.elapsed_ns >= self.slow_ns),
            (RATIO, facts.trace_id is not None and self.has_trace(facts.trace_id)),
        )
        return tuple(name for name, is_so in held if is_so)

    def has_trace(self, trace_id: int) -> bool:
        """Whether the ratio keeps a trace; every process with this ratio agrees, and a higher ratio keeps it too."""
        if self.ratio is None:
            return False
        return trace_id & ((1 << _TRACE_BITS) - 1) < round(self.ratio * (1 << _TRACE_BITS))


ALWAYS: Final = Rules()


def parse_rules(text: str, users: str = "") -> Rules:
    """Parse the two settings. Raises: ConfigError, which names the value and the allowed rules."""
    words = [word.strip() for word in text.split(",")]
    if words in ([""], [ALWAYS_WORD]):
        return ALWAYS
    errors = call_errors = False
    slow_ns: int | None = None
    ratio: float | None = None
    kinds: set[str] = set()
    for word in words:
        kind = word.partition(":")[0].lower() if word[:1].isalpha() else RATIO
        if kind in kinds:
            raise _refuse(text, f"it has two rules of the kind {kind!r}")
        kinds.add(kind)
        if word == ERRORS:
            errors = True
        elif word == CALL_ERRORS:
            call_errors = True
        elif kind == SLOW:
            slow_ns = _read_duration(text, word)
        elif kind == RATIO:
            ratio = _read_ratio(text, word)
        elif word == ALWAYS_WORD:
            raise _refuse(text, f"{ALWAYS_WORD!r} stands with other rules")
        else:
            raise _refuse(text, f"{word!r} is not a rule")
    named = frozenset(name.strip() for name in users.split(",") if name.strip())
    return Rules(",".join(words), False, errors, call_errors, slow_ns, ratio, named)


def _read_duration(text: str, word: str) -> int:
    found = _DURATION.fullmatch(word.partition(":")[2])
    if found is None:
        raise _refuse(text, f"{word!r} has no duration like 500ms, 2s or 1.5m")
    return round(float(found["number"]) * _NANOSECONDS[found["unit"]])


def _read_ratio(text: str, word: str) -> float:
    if _RATIO.fullmatch(word) is None or float(word) > 1:
        raise _refuse(text, f"{word!r} is neither a rule nor a ratio from 0 to 1")
    return float(word)


def _refuse(text: str, why: str) -> ConfigError:
    return ConfigError(f"{SETTING}={text!r} can't be used: {why}", hint=f"use {ALLOWED}")


def read_rules(environ: Mapping[str, str] = os.environ) -> Rules:
    """The rules of this process; if the setting is unusable, an error is logged once and every unit is kept."""
    return _read(config.read_setting(SETTING, environ), config.read_setting(USERS_SETTING, environ))


@cache
def _read(text: str, users: str) -> Rules:
    try:
        return parse_rules(text, users)
    except ConfigError as exc:
        logger.error("%s; %s; until then every unit is kept", exc, exc.hint)
        return ALWAYS
