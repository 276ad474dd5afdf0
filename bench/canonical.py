"""Time to compute the key of a 40 KB chat request of which 3 KB are new, in microseconds.

Run: python bench/canonical.py
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from spanreplay.model.canonical import canonicalize
from spanreplay.model.keys import KeyMemo, compute_key
from spanreplay.model.keyspec import select

ROUNDS = 200


def main() -> None:
    """Print one line per case."""
    rng = random.Random(7)  # noqa: S311  a benchmark's text, not a secret
    old = [_message(rng, index) for index in range(60)]
    tools = [_tool(rng, index) for index in range(8)]
    bodies = [
        _parse(
            {
                "model": "m",
                "messages": old + [_message(rng, 1000 + n) for n in range(n, n + 5)],
                "tools": tools,
                "temperature": 0.2,
                "stream": True,
            }
        )
        for n in range(ROUNDS)
    ]
    size = len(json.dumps(bodies[0]))
    new = size - len(json.dumps({**bodies[0], "messages": old}))
    say(f"python {platform.python_version()}, {size / 1000:.1f} kB, new {new / 1000:.1f} kB, {ROUNDS} rounds")
    kept = [select("openai_chat/1", body)[0] for body in bodies]
    before = {**kept[0], "messages": _parse({"old": old})["old"]}
    edited = {**before, "messages": [_message(rng, 0), *before["messages"][1:]]}
    tail = [{**body, "messages": body["messages"][-5:], "tools": []} for body in kept]

    def primed(fields: dict[str, Any]) -> KeyMemo:
        memo = KeyMemo()
        compute_key("openai_chat/1", fields, memo)
        return memo

    report("json.dumps(sort_keys), for scale", lambda _: json.dumps(before, sort_keys=True))
    report("canonicalize", lambda _: canonicalize(before))
    report("compute_key, no memo", lambda n: compute_key("openai_chat/1", kept[n]))
    memos = [primed(before) for _ in range(ROUNDS)]
    report("compute_key, 3 kB appended", lambda n: compute_key("openai_chat/1", kept[n], memos[n]))
    report("compute_key, nothing new", lambda n: compute_key("openai_chat/1", kept[n], memos[n]))
    memos = [primed(edited) for _ in range(ROUNDS)]
    report("compute_key, 3 kB new, history edited", lambda n: compute_key("openai_chat/1", kept[n], memos[n]))
    report("compute_key, the 3 kB alone, no memo", lambda n: compute_key("openai_chat/1", tail[n]))


def say(line: str) -> None:
    """Print one line."""
    sys.stdout.write(line + "\n")


def report(name: str, run: Callable[[int], object]) -> None:
    """Time each round once."""
    times = []
    for n in range(ROUNDS):
        start = time.perf_counter_ns()
        run(n)
        times.append(time.perf_counter_ns() - start)
    times.sort()
    say(f"{name:40s} best {times[0] / 1000:8.1f} µs   median {statistics.median(times) / 1000:8.1f} µs")


def _parse(body: dict[str, Any]) -> dict[str, Any]:
    """Return a fresh copy, since every request is a new object."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    return copy


def _text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("abcdefghij klmnop qrstuvw xyz.,\n") for _ in range(length))


def _message(rng: random.Random, index: int) -> dict[str, Any]:
    if index % 3 == 0:
        return {"role": "user", "content": _text(rng, 600)}
    if index % 3 == 1:
        call = {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": "f", "arguments": _text(rng, 400)},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "tool", "tool_call_id": f"call_{index - 1}", "content": _text(rng, 600)}


def _tool(rng: random.Random, index: int) -> dict[str, Any]:
    names = [f"argument_{n}" for n in range(5)]
    properties = {name: {"type": "string", "description": _text(rng, 30)} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}
    return {"type": "function", "function": {"name": f"tool_{index}", "parameters": schema}}


if __name__ == "__main__":
    main()
