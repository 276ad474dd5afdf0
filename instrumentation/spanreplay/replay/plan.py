"""The plan of a replay: per boundary `stub` (serve the recording) or `live`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from spanreplay.errors import ConfigError

STUB, LIVE = "stub", "live"
ON_CHANGE = ("stop", "serve", "live")
RULES_MAX = 200


@dataclass(frozen=True)
class Plan:
    """Which calls are served and which run live.

    Patterns are `kind:name` with `*` and `?`; a bare kind means all of it. Of the patterns that match, the longest
    decides, and `stub` wins a tie. `on_change` says what to do with a call that differs from the recorded one:
    `stop` (raise), `serve` the recorded answer by position, or go `live`.
    """

    stub: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    on_change: str = "stop"

    def is_live(self, boundary: str) -> bool:
        """Whether a boundary, `kind:name`, runs live."""
        stub = max((len(p) for p in self.stub if fnmatchcase(boundary, p)), default=-1)
        live = max((len(p) for p in self.live if fnmatchcase(boundary, p)), default=-1)
        return live > stub

    def to_json(self) -> str:
        """The form that goes into SPANREPLAY_REPLAY_PLAN."""
        return json.dumps({"stub": self.stub, "live": self.live, "on_change": self.on_change})


def build_plan(*, stub: tuple[str, ...] = (), live: tuple[str, ...] = (), on_change: str = "stop") -> Plan:
    """A checked plan. Raises: ConfigError naming the pattern or word that cannot be used."""
    if on_change not in ON_CHANGE:
        raise ConfigError(f"on-change {on_change!r} is not one of {', '.join(ON_CHANGE)}")
    if len(stub) + len(live) > RULES_MAX:
        raise ConfigError(f"a plan has at most {RULES_MAX} patterns, not {len(stub) + len(live)}")
    return Plan(tuple(map(_pattern, stub)), tuple(map(_pattern, live)), on_change)


def _pattern(text: str) -> str:
    pattern = text.strip()
    if not pattern:
        raise ConfigError("an empty pattern in the plan", hint="write kind:name, for example 'tool:*'")
    return pattern if ":" in pattern else f"{pattern}:*"


def read_plan(text: str) -> Plan:
    """The plan that `Plan.to_json` wrote; empty text is the default plan. Raises: ConfigError."""
    if not text:
        return Plan()
    try:
        value: Any = json.loads(text)
    except ValueError as exc:
        raise ConfigError("the replay plan is not JSON") from exc
    if not isinstance(value, Mapping):
        raise ConfigError("the replay plan is not a JSON object")
    return build_plan(
        stub=tuple(map(str, value.get("stub", ()))),
        live=tuple(map(str, value.get("live", ()))),
        on_change=str(value.get("on_change", "stop")),
    )
