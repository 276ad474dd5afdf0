"""Contents of the local provider's answers: unique texts, ids, tool calls read from the prompt, schema values."""

from __future__ import annotations

import itertools
import json
import random
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

CONTENT_PIECES: Final = 11
"""A streamed text is split into this many pieces; with the opening and closing chunk there are 13."""
MODEL_DATE: Final = "-2026-10-01"
_RANDOM: Final = random.SystemRandom()
_COUNTER: Final = itertools.count(1)
_BASE62: Final = string.ascii_letters + string.digits
_WORDS: Final = re.findall(
    r"\w+",
    "amber anchor autumn basil beacon birch breeze bridge candle canyon cedar cello cinder clover cobalt "
    "copper coral cricket dahlia delta desert dune ember falcon fern fjord flint forest garnet ginger "
    "glacier granite harbor hazel heron indigo island ivory jasper juniper kestrel lagoon lantern larch "
    "lemon lilac maple marble meadow mesa mint nectar oak olive onyx opal orchid otter pebble pine plum "
    "prairie quartz raven reed river rowan saffron sage sierra silver spruce summit thistle tundra umber "
    "valley velvet violet walnut willow winter yarrow zephyr",
)
_TOOL_ORDER: Final = re.compile(r"use tool ([\w.-]+) with ", re.IGNORECASE)
_SAY_ORDER: Final = re.compile(r"\bsay (?=\{)")
_STEPS: Final = "step by step"
_OBSERVED: Final = re.compile(r"\[\[ ## observation_\d+ ## \]\]")


@dataclass(frozen=True)
class Line:
    """One message of a conversation, independent of any provider's dialect."""

    role: str
    text: str
    is_tool_request: bool = False


@dataclass(frozen=True)
class ToolOrder:
    """One tool call that the model makes."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """The answer that a conversation requests now: tool calls, else a text."""

    prompt: str
    tool_orders: tuple[ToolOrder, ...] = ()
    tool_results: tuple[str, ...] = ()
    text: str = ""
    """The exact text of the answer; empty for any text."""


def make_id(prefix: str, length: int = 24) -> str:
    """Return a provider-like opaque id, always unique."""
    return prefix + "".join(_RANDOM.choices(_BASE62, k=length))


def resolve_model(model: str) -> str:
    """Return the dated model of an alias; a dated name is returned unchanged."""
    return model if re.search(r"\d{4}-?\d{2}-?\d{2}$", model) else model + MODEL_DATE


def count_tokens(text: str) -> int:
    """Return a plausible number of tokens for a text."""
    return max(1, (len(text) + 3) // 4)


def make_text(turn: Turn) -> str:
    """Return a unique completion: a sequence number and random words."""
    if turn.text:
        return turn.text
    words = " ".join(_RANDOM.choices(_WORDS, k=9))
    opening = f"Answer {next(_COUNTER)} of this model: {words}."
    if turn.tool_results:
        return f"{opening} The tools said: " + " | ".join(turn.tool_results)
    return f"{opening} You asked: {turn.prompt[:120]}"


def split_text(text: str, pieces: int = CONTENT_PIECES) -> list[str]:
    """Split the text into exactly `pieces` parts; parts may be empty if it is short."""
    bounds = [round(i * len(text) / pieces) for i in range(pieces + 1)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def read_turn(lines: Sequence[Line], tools: Iterable[str], call_id_prefix: str) -> Turn:
    """Return the turn that the conversation requests after its last user message.

    "use tool A with {…} and use tool B with {…} then use tool C with {…}" makes two parallel calls in
    the first turn and one in the second, and a text after that. Tools that were not offered are not called.
    'say {"text": …}' is a turn with that text. A prompt with "step by step" applies to all messages after it, even if
    a framework returns tool results as user messages; a turn is then an answer of the assistant, or an observation
    that dspy writes into its prompt.
    """
    offered = set(tools)
    last_user = max((i for i, line in enumerate(lines) if line.role == "user"), default=-1)
    plan = max((i for i, line in enumerate(lines) if _STEPS in line.text and line.role != "assistant"), default=-1)
    start = plan if plan >= 0 else last_user
    prompt = lines[start].text if start >= 0 else ""
    after = lines[start + 1 :]
    separator = r"\bthen\b" if " then " in prompt else r"\bTHEN\b"  # a sub-agent's plan inside that of its supervisor
    rounds = [r for part in re.split(separator, prompt) if (r := _read_round(part, offered))]
    if plan >= 0:
        done = sum(line.role == "assistant" for line in after) + len(set(_OBSERVED.findall(prompt)))
    else:
        done = sum(line.is_tool_request for line in after)
    wanted = rounds[done] if done < len(rounds) else []
    if isinstance(wanted, str):
        return Turn(prompt, text=wanted)
    if wanted:
        orders = tuple(ToolOrder(make_id(call_id_prefix), name, args) for name, args in wanted)
        return Turn(prompt, tool_orders=orders)
    return Turn(prompt, tool_results=tuple(line.text for line in after if line.role == "tool"))


def _read_round(text: str, offered: set[str]) -> str | list[tuple[str, str]]:
    """Return the text to say, or the tools to call, in one turn."""
    said = _SAY_ORDER.search(text)
    if said is None:
        return _read_tool_orders(text, offered)
    try:
        return str(json.JSONDecoder().raw_decode(text, said.end())[0]["text"])
    except (json.JSONDecodeError, KeyError):
        return ""


def _read_tool_orders(text: str, offered: set[str]) -> list[tuple[str, str]]:
    orders = []
    for match in _TOOL_ORDER.finditer(text):
        if match[1] not in offered:
            continue
        try:
            arguments, _ = json.JSONDecoder().raw_decode(text, match.end())
        except json.JSONDecodeError:
            continue
        orders.append((match[1], json.dumps(arguments, ensure_ascii=False)))
    return orders


def make_value(schema: Json, root: Json | None = None) -> Any:
    """Return a random value that a JSON schema (the subset that SDKs emit) accepts."""
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[part]
        return make_value(target, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return make_value(schema[key][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return _RANDOM.choice(schema["enum"])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: make_value(sub, root) for name, sub in schema.get("properties", {}).items()}
    if kind == "array":
        return [make_value(schema.get("items", {"type": "string"}), root) for _ in range(2)]
    if kind in ("integer", "number"):
        return next(_COUNTER) if kind == "integer" else next(_COUNTER) + 0.5
    if kind == "boolean":
        return _RANDOM.random() < 0.5
    return None if kind == "null" else " ".join(_RANDOM.choices(_WORDS, k=2))


def make_vector(size: int) -> list[float]:
    """Return a random unit-range vector, exact in single precision, always unique."""
    return [_RANDOM.randint(-(2**20), 2**20) / 2**20 for _ in range(size)]


def flatten_content(content: Any) -> str:
    """Return the text of a message's content: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(
            str(part.get("text", part.get("content", ""))) if isinstance(part, dict) else str(part) for part in content
        )
    return str(content)
