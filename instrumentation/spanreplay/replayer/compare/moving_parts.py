"""The eight moving parts of an agent, and the part that contains a difference; pure.

Each has a recorded field: the sampler and the model are in a request's parameters, the serving stack in the response's
fingerprint, prompt and history in the messages, tools and retrieval in their own calls, the clock in `reads`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.model.serving_stack import STATED, list_changed
from spanreplay.replayer.compare.conversation import SYSTEM_ROLES, listed_in, read_body, role_of
from spanreplay.replayer.divergence import Diff, Stated

SAMPLER, SERVING, PROMPT, RETRIEVAL = "sampler", "serving", "prompt", "retrieval"
TOOLS, CLOCK, MODEL, HISTORY = "tools", "clock", "model", "history"
PARTS: Final = (SAMPLER, SERVING, PROMPT, RETRIEVAL, TOOLS, CLOCK, MODEL, HISTORY)

MODELS: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value})
_BY_KIND: Final = {
    Kind.RETRIEVER.value: RETRIEVAL,
    Kind.TOOL.value: TOOLS,
    Kind.MCP.value: TOOLS,
    Kind.HTTP.value: TOOLS,
    Kind.CLOCK.value: CLOCK,
}
_SYSTEM_FIELDS: Final = frozenset({"system", "instructions", "systemInstruction", "system_instruction", "prompt"})
_TOOL_FIELDS: Final = frozenset(
    {"tools", "tool_choice", "functions", "function_call", "toolConfig", "tool_config", "parallel_tool_calls"}
    | {"max_tool_calls", "mcp_servers"}
)
_MESSAGE: Final = re.compile(r"(?:messages|input|contents)(?:\[(\d+)\])?")
_FIELD: Final = re.compile(r"[^.\[]+")
_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?|\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b|"
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? |\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d"
)


def part_of_request(kind: str, diff: tuple[Diff, ...], recorded: str, now: str) -> str:
    """Return the part in which a request first differs; '' if it is none of the eight."""
    if kind not in MODELS:
        return CLOCK if diff and all(is_time(d) for d in diff) else ""
    found = [_part_of_field(d, recorded, now) for d in diff]
    return next((part for part in found if part), "")


def _part_of_field(diff: Diff, recorded: str, now: str) -> str:
    match = _FIELD.match(diff.path)
    field = match.group() if match else ""
    if field == "model":
        return MODEL
    if is_time(diff):
        return CLOCK
    if field in _SYSTEM_FIELDS:
        return PROMPT
    if field in _TOOL_FIELDS:
        return TOOLS
    message = _MESSAGE.match(diff.path)
    if message is not None:
        return _part_of_message(int(message.group(1) or 0), diff, recorded, now)
    return SAMPLER if field and field not in ("$", "timeout") else ""


def _part_of_message(at: int, diff: Diff, recorded: str, now: str) -> str:
    before, after = listed_in(read_body(recorded)), listed_in(read_body(now))
    source = before if diff.now == "(absent)" and len(before) > len(after) else after
    role = role_of(source[at]) if at < len(source) else ""
    if role in SYSTEM_ROLES:
        return PROMPT
    if len(before) != len(after):
        return HISTORY
    if role == "tool":
        return TOOLS
    last_user = max((i for i, m in enumerate(after) if role_of(m) == "user"), default=-1)
    return PROMPT if at == last_user else HISTORY


def part_of_output(kind: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the part that changed the output for an equal request; `recorded` and `now` are the calls' meta."""
    if kind not in MODELS:
        return _BY_KIND.get(kind, "")
    changed = list_changed(recorded, now)
    return (MODEL if changed[0] == "response_model" else SERVING) if changed else SAMPLER


def stated_by(kind: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Stated, ...]:
    """Return what the servers of two model answers state about themselves, in pairs; all or nothing."""
    pairs = tuple(Stated(label, str(recorded.get(name) or ""), str(now.get(name) or "")) for name, label in STATED)
    return pairs if kind in MODELS and any(each.recorded or each.now for each in pairs) else ()


def part_of_kind(kind: str) -> str:
    """Return the part of a call that is new, or is no longer made."""
    return _BY_KIND.get(kind, "")


def is_time(diff: Diff) -> bool:
    """Whether two texts differ only within a date or a time that both contain."""
    a, b = diff.recorded, diff.now
    if not isinstance(a, str) or not isinstance(b, str) or a == b:
        return False
    return (bool(_TIME.search(a)) and _TIME.sub("", a) == _TIME.sub("", b)) or _is_epoch(a, b)


def _is_epoch(a: str, b: str) -> bool:
    return bool(_TIME.fullmatch(a) and _TIME.fullmatch(b))
