"""Replay the units of one process: in forks of an application that is started once, or each in its own process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spanreplay.cli.agent.child import describe_end, run_child
from spanreplay.cli.agent.launch import Agent, build_environ, recorded_hash_secret, recorded_hash_seed
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.replay import Source, run_agent
from spanreplay.cli.runs.units import Unit
from spanreplay.cli.terminal import say
from spanreplay.model.call import Completeness, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.report import suite as report
from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict
from spanreplay.report.words import plural

__all__ = ["Terms", "replay_units"]

_TOLD: Final = "report.jsonl"
_LOOK_S: Final = 0.5
_APART: Final = '{"apart":'
_OF_START: Final = ("diverged", "tampered", "error")
"""Verdicts of the start that apply to all units; a start that is as recorded decides nothing about a unit."""


@dataclass(frozen=True)
class Terms:
    """How the units of one process are replayed."""

    agent: Agent
    jobs: int
    timeout_s: float
    stdout: int | None
    """File descriptor for the application's standard output; None: standard output is inherited."""
    earlier: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Run id of a unit → run ids of the units that are replayed before it, in order."""
    plan: str = ""
    """The plan of these replays, as JSON."""


def replay_units(
    sources: Sequence[tuple[Unit, str]], terms: Terms, folder: Path, count: Callable[[int], None]
) -> tuple[list[Verdict], int]:
    """Replay the units of one process; return the verdicts and how many times the application was started.

    `count` is called from another thread with the number of units replayed so far.
    """
    with _watching(folder / _TOLD, count):
        told, status = _start(sources, terms, folder)
    apart = next((line["apart"] for line in told if "apart" in line), "")
    if apart:
        say(f"each unit is replayed in its own process: {apart}")
        return _replay_apart(sources, terms, folder), len(sources)
    own = {line["unit"]: line for line in told if "unit" in line}
    common = next((line for line in told if line.get("verdict") in _OF_START), None)
    if common is not None or len(own) < len(sources):
        say(f"the application {describe_end(status)} after reaching {len(own)} of {len(sources)} units")
    why = f"no verdict: the application {describe_end(status)} before this unit"
    found: dict[str, Verdict] = {}
    apart_from: dict[str, list[tuple[Unit, str]]] = {}
    for unit, path in sources:
        line = own.get(path, {})
        reason = _find_apart(line)
        if reason:
            apart_from.setdefault(reason, []).append((unit, path))
        elif line:
            found[path] = _read(unit, line, terms)
        elif common is not None:  # the start differed, so no unit was begun
            found[path] = parse(json.dumps({**common, "run_id": unit.run_id, "app": unit.root.app}))
        else:
            found[path] = report.make_error(unit.run_id, unit.root.app, why, "see its output above")
    for reason, left in apart_from.items():
        whose = "" if len(left) == 1 else ", each"
        say(f"{plural(len(left), 'unit')}{whose} replayed in its own process: {reason}")
        found |= zip((path for _, path in left), _replay_apart(left, terms, folder), strict=True)
    return [found[path] for _, path in sources], 1 + sum(map(len, apart_from.values()))


@contextmanager
def _watching(told: Path, count: Callable[[int], None]) -> Iterator[None]:
    """Every _LOOK_S seconds, call `count` with the number of lines in the report of the application's process."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            with suppress(OSError):
                count(told.read_bytes().count(b"\n"))

    watcher = threading.Thread(target=watch, name="spanreplay-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _find_apart(line: dict[str, Any]) -> str:
    """The reason why a unit could not be replayed in a fork; empty if it could."""
    text = str(line.get("verdict", ""))
    found = json.loads(text) if text.startswith(_APART) else {}
    return str(found.get("apart", ""))


def _start(sources: Sequence[tuple[Unit, str]], terms: Terms, folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Start the application for its units; return the lines that its process reports, and its exit status."""
    order, told = folder / "suite.json", folder / _TOLD
    units = [path for _, path in sources]
    earlier = {path: terms.earlier[unit.run_id] for unit, path in sources if unit.run_id in terms.earlier}
    told_order = {"units": units, "jobs": terms.jobs, "timeout_s": terms.timeout_s, "earlier": earlier}
    order.write_text(json.dumps(told_order), encoding="utf-8")
    settings = {
        "SPANREPLAY_MODE": "replay",
        "SPANREPLAY_REPLAY_SOURCE": units[0],
        "SPANREPLAY_REPLAY_SUITE": str(order),
        "SPANREPLAY_REPLAY_REPORT": str(told),
        "SPANREPLAY_REPLAY_PID": "",
        "SPANREPLAY_REPLAY_WARM": "",
        **_told(terms),
    }
    first = Recording(sources[0][0].root, ())
    seed = recorded_hash_seed(first)
    environ = build_environ(os.environ, settings, is_replay=True, hash_seed=seed)
    secret = recorded_hash_secret(first)
    status = run_child(terms.agent.argv, environ, stdout=terms.stdout, hash_secret=secret, is_replay=True)
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    return [json.loads(line) for line in lines if line], status


def _told(terms: Terms) -> dict[str, str]:
    return {"SPANREPLAY_REPLAY_PLAN": terms.plan} if terms.plan else {}


def _read(unit: Unit, line: dict[str, Any], terms: Terms) -> Verdict:
    """The verdict of one unit, from the report of its process and its exit status."""
    if line["is_late"]:
        why = f"no verdict after {terms.timeout_s:g} s: the unit was stopped"
        return report.make_error(unit.run_id, unit.root.app, why, "allow more time with --timeout SECONDS")
    if not line["verdict"]:
        why = f"no verdict: the unit {describe_end(line['status'])} before it finished"
        return report.make_error(unit.run_id, unit.root.app, why, "see its output above")
    try:
        verdict = parse(line["verdict"])
    except SpanreplayError as exc:
        return report.make_error(unit.run_id, unit.root.app, str(exc), exc.hint)
    if verdict["verdict"] == "error" and not verdict.get("run_id"):
        return report.make_error(unit.run_id, unit.root.app, str(verdict.get("error")), str(verdict.get("hint", "")))
    return _settle(verdict, line["status"])


def _settle(verdict: Verdict, status: int) -> Verdict:
    return settle(verdict, status, Completeness(verdict["verdict"] != "incomplete"))


def _replay_apart(sources: Sequence[tuple[Unit, str]], terms: Terms, folder: Path) -> list[Verdict]:
    """Replay each unit in its own process."""

    def replay(each: tuple[Unit, str]) -> Verdict:
        unit, path = each
        own = folder / unit.run_id
        own.mkdir()
        try:
            verdict, status = run_agent(
                terms.agent,
                Source(path, Recording(unit.root, ())),
                {
                    "SPANREPLAY_REPLAY_SUITE": "",
                    "SPANREPLAY_REPLAY_WARM": ",".join(terms.earlier.get(unit.run_id, ())),
                    **_told(terms),
                },
                own,
                stdout=terms.stdout,
                timeout_s=terms.timeout_s,
            )
        except SpanreplayError as exc:
            return report.make_error(unit.run_id, unit.root.app, str(exc), exc.hint)
        return _settle(verdict, status)

    if terms.jobs == 1:
        return [*map(replay, sources)]
    with ThreadPoolExecutor(terms.jobs) as pool:
        return [*pool.map(replay, sources)]
