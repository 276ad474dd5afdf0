"""A canary: a marked test whose models run live against its recording, while all other calls are served.

The replay finds each model call whose request is the recorded one and whose answer is not. A judge may accept such an
answer; everything else that differs fails, unless it follows from an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model.call import Kind, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import shorten
from spanreplay.testing.judge import Judge, ask_judge
from spanreplay.testing.made_calls import MadeCall, is_of_judge, read_calls

__all__ = ["LIVE_KINDS", "Findings", "examine"]

LIVE_KINDS: Final = (Kind.LLM.value,)
_CHANGED: Final = "output_changed"
_SHOWN_MAX: Final = 200
_CRITERION: Final = "It is as good an answer as this earlier one, with the same facts and the same decision: %s"


@dataclass(frozen=True)
class Findings:
    """What a canary found: what is wrong, and how many other answers the judge accepts."""

    wrong: tuple[str, ...]
    accepted: int


def examine(verdict: Mapping[str, Any], recorded: Recording, now: Recording, judge: Judge | None) -> Findings:
    """Examine the differences of a canary's replay; without a judge, every other answer is wrong.

    Raises: ConfigError if the judge can't be used; whatever the judge raises.
    """
    divergences = verdict["divergences"]
    before, after = _by_span(recorded), _by_span(now)
    wrong: list[str] = []
    accepted = 0
    if verdict.get("divergences_total", len(divergences)) > len(divergences):
        wrong.append("more differs than the verdict lists")
    for each in divergences:
        if is_of_judge(str(each.get("lane", ""))):  # the test itself decides about its judge's answers
            continue
        old, new = before.get(str(each.get("recorded_span_id"))), after.get(str(each.get("replay_span_id")))
        if each["kind"] != _CHANGED or old is None or new is None:
            wrong += [] if each.get("downstream") else [str(each["message"])]
            continue
        why = _compare(old, new, judge)
        accepted += not why and old.result != new.result
        wrong += [f"call {old.number}: {why}"] if why else []
    return Findings(tuple(wrong), accepted)


def _by_span(recording: Recording) -> dict[str, MadeCall]:
    return {call.span_id: call for call in read_calls(recording).calls}


def _compare(old: MadeCall, new: MadeCall, judge: Judge | None) -> str:
    """What is wrong with a new answer; '' if nothing is."""
    if new.error:
        return f"the model failed: {shorten(new.error, _SHOWN_MAX)}"
    if [(call.name, call.arguments) for call in old.asked] != [(call.name, call.arguments) for call in new.asked]:
        return f"the model asks for {_list(new)} instead of {_list(old)}"
    if old.result == new.result:
        return ""
    texts = f"recorded {shorten(repr(old.result), _SHOWN_MAX)}, now {shorten(repr(new.result), _SHOWN_MAX)}"
    if judge is None:
        return f"the model answers differently: {texts}"
    if not isinstance(new.result, str):
        raise ConfigError(f"the answer of call {old.number} is not text, and can't be judged")
    found = ask_judge(new.result, _CRITERION % json.dumps(old.result, ensure_ascii=False), judge=judge)
    return "" if found.decision == "pass" else f"the judge says {found.decision} ({found.reason}): {texts}"


def _list(call: MadeCall) -> str:
    return shorten(", ".join(map(str, call.asked)), _SHOWN_MAX) or "no tool"
