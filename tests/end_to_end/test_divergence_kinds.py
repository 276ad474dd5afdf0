"""Every kind of divergence, word for word, from recording and replaying a small program.

To see the effect of a change, set SPANREPLAY_TEST_WRITE_GOLDEN=true, run pytest, then `git diff`.
"""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from spanreplay.report import text
from spanreplay.report.json import parse
from support.replaying import Replayed, Workplace

GOLDEN = Path(__file__).with_name("golden_kinds")
PROGRAM = """
import asyncio, os, pathlib, socket, sys
import spanreplay

kind = sys.argv[1]
is_replay = bool(os.environ.get("IS_REPLAY"))


@spanreplay.boundary("tool", name="order", effect="irreversible")
def order(amount, note=""):
    return {"state": "filled", "amount": amount, "luck": os.environ.get("IS_REPLAY", "0")}


@spanreplay.boundary("tool", name="submit", effect="irreversible")
def submit(amount, note=""):
    return {"state": "filled"}


@spanreplay.boundary("tool", name="quotes", effect="read")
def quotes():
    yield from range(5)


@spanreplay.boundary("tool", name="draw", effect="read")
async def draw():
    return os.urandom(4).hex()


@spanreplay.boundary("tool", name="ask", effect="read")
async def ask():
    if not is_replay:
        await asyncio.sleep(60)


class Opaque:
    pass


def read(items):
    stream = quotes()
    for _ in range(items):
        next(stream)


async def first():
    await draw()


async def second():
    await draw()


async def other():
    await draw()


async def together(*functions):
    await asyncio.gather(*(function() for function in functions))


async def lose():
    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    if not is_replay:
        task.cancel()
    await asyncio.wait([task])


def run(recorded, now):
    (now if is_replay else recorded)()


def orders(*amounts):
    return lambda: [order(amount) for amount in amounts]


programs = {
    "identical": (orders(1, 2), orders(1, 2)),
    "changed_call": (orders(1, 2), orders(1, 190_000)),
    "extra_call": (orders(1), orders(1, 2)),
    "missing_call": (orders(1, 2, 3), orders(1, 3)),
    "moved": (lambda: (order(1), order(2, "b")), lambda: (order(2, "b"), order(1))),
    "ambiguous": (lambda: asyncio.run(together(first, second)), lambda: asyncio.run(together(other))),
    "boundary_renamed": (orders(1), lambda: submit(1)),
    "type_changed": (orders(1), orders("1")),
    "unserializable": (orders(1), orders(Opaque())),
    "output_changed": (orders(1), orders(1)),
    "stream_overrun": (lambda: read(2), lambda: read(3)),
    "stream_underrun": (lambda: read(3), lambda: read(2)),
    "order_stall": (lambda: asyncio.run(lose()), lambda: asyncio.run(lose())),
    "effect_blocked": (orders(1), lambda: (order(1), socket.create_connection(("127.0.0.1", 9), timeout=1))),\
    "file_changed": tuple(lambda t=t: (order(1), pathlib.Path("report.txt").write_text(t)) for t in ("one", "two")),
    "raised": (orders(1), lambda: (order(1), int("one"))),
}
run(*programs[kind])
"""
KINDS = (
    "identical",
    "raised",
    "changed_call",
    "extra_call",
    "missing_call",
    "moved",
    "ambiguous",
    "boundary_renamed",
    "type_changed",
    "unserializable",
    "output_changed",
    "stream_overrun",
    "stream_underrun",
    "order_stall",
    "effect_blocked",
    "file_changed",
)
VOLATILE = frozenset(
    {"run_id", "replay_run_id", "recorded_span_id", "replay_span_id", "span_id", "duration_ms", "recorded_duration_ms"}
)


def settled(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict with ids and times normalised, so that it is the same in every run."""
    ids: dict[str, str] = {}

    def clean(value: Any, name: str = "") -> Any:
        if name in ("duration_ms", "recorded_duration_ms"):
            return 7
        if isinstance(value, dict):
            return {
                k: clean(v, k)
                for k, v in value.items()
                if k not in ("drift", "code", "sandbox") or name == "divergence"
            }
        if name == "stack":
            return list(dict.fromkeys(clean(v) for v in value))
        if isinstance(value, list):
            return [clean(v, "divergence" if name == "divergences" else name) for v in value]
        if name in VOLATILE and value:
            return ids.setdefault(value, f"{len(ids) + 1:0{len(value)}x}")
        if isinstance(value, str):
            # The name of a frame depends on the version of Python; its place does not
            value = re.sub(r"(program\.py:\d+) [\w.<>]+", r"\1", value)
            return re.sub(r"[0-9a-f]{32}", lambda m: ids.get(m.group(), m.group()), value)
        return value

    found: dict[str, Any] = clean(verdict)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A directory that holds the program; no model is called."""
    workplace = Workplace(tmp_path)
    workplace.write("program.py", PROGRAM)
    return workplace


def replay(place: Workplace, kind: str) -> Replayed:
    """Record the program and replay it with its change."""
    place.record("program.py", kind)
    options = ["--live", "tool:order"] if kind == "output_changed" else []
    return place.replay("program.py", kind, options=options, IS_REPLAY="1")


@pytest.mark.parametrize("kind", KINDS)
def test_s65_golden_report_of_each_kind(kind: str, place: Workplace) -> None:
    """JSON and text match the committed files; the first cause has that kind; the schema holds."""
    replayed = replay(place, kind)
    assert replayed.verdict, replayed.stderr
    found = settled(replayed.verdict)
    if os.environ.get("SPANREPLAY_TEST_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{kind}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        shown = text.render(parse(json.dumps(found))).plain + "\n"
        (GOLDEN / f"{kind}.txt").write_text(shown, encoding="utf-8")
    schema = json.loads((files("spanreplay.report") / "divergence-1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(replayed.verdict)
    causes = [d for d in found["divergences"] if not d["downstream"]]
    assert [d["kind"] for d in causes[:1]] == ([] if kind == "identical" else [kind])
    assert found == json.loads((GOLDEN / f"{kind}.json").read_text(encoding="utf-8"))
    shown = text.render(parse(json.dumps(found))).plain + "\n"
    assert shown == (GOLDEN / f"{kind}.txt").read_text(encoding="utf-8")


def test_s65_published_schema_is_the_one_that_ships() -> None:
    """The schema in docs/ is the package's, and it names every kind in these tests."""
    shipped = (files("spanreplay.report") / "divergence-1.schema.json").read_text(encoding="utf-8")
    published = Path(__file__).parents[2] / "docs" / "divergence-1.schema.json"
    assert published.read_text(encoding="utf-8") == shipped
    named = json.loads(shipped)["$defs"]["divergence"]["properties"]["kind"]["examples"]
    assert set(named) == set(KINDS) - {"identical"}
