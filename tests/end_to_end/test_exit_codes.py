"""The command exits with the documented status."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import CallRecord, Recording
from spanreplay.recording import bundle
from spanreplay.replayer.verdict import EXIT_CODES
from support.agents import ROOT
from support.recordings import split_request
from support.replaying import Workplace
from support.runs import make_request

AGENT: Final = """
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2

for amount in (1, 2, 3):
    print(quote(amount))
"""
_ROW: Final = re.compile(r"^\| (\d(?:, \d)*) \| ([a-z_, ]+?) \|", re.MULTILINE)


def _documented(page: str) -> dict[str, int]:
    """The status of each verdict, from a page's table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {
        name.strip(): int(status)
        for statuses, names in _ROW.findall(text)
        for status, name in zip(statuses.split(","), names.split(","), strict=True)
    }


def test_u5_documents_and_verdicts_have_the_same_exit_codes() -> None:
    """The reference has a status for each verdict, and the README's statuses are a subset."""
    reference = _documented("docs/reference/cli.md")
    assert reference == {**EXIT_CODES, "wrong usage": 2}
    readme = _documented("README.md")
    assert {"identical", "diverged", "incomplete", "error", "wrong usage"} <= readme.keys()
    assert readme.items() <= reference.items()


def _lose(calls: tuple[CallRecord, ...]) -> tuple[CallRecord, ...]:
    return calls[:1] + calls[2:]


def _forge(calls: tuple[CallRecord, ...]) -> tuple[CallRecord, ...]:
    return (replace(calls[0], response='{"value":7}'), *calls[1:])


@pytest.fixture
def recording(workplace: Workplace) -> Recording:
    """A recorded run of the agent."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    return workplace.recording()


def test_u5_the_command_ends_with_the_documented_exit_code(workplace: Workplace, recording: Recording) -> None:
    """Covers each verdict that needs no model and no human; `test_s42_…` and `test_s67_…` cover the others."""
    documented, ended = _documented("docs/reference/cli.md"), dict[str, int]()

    def end(name: str, source: str = "", *options: str) -> None:
        replayed = workplace.replay("agent.py", source=source, options=options)
        assert replayed.verdict.get("verdict", name) == name, replayed.stderr
        ended[name] = replayed.status

    def pack(name: str, calls: tuple[CallRecord, ...]) -> str:
        path: Path = workplace.path / f"{name}.replay"
        request = make_request(Recording(recording.root, calls))
        path.write_bytes(bundle.pack(recording.run_id, split_request(request)))
        return path.name

    end("identical")
    end("incomplete", pack("lost", _lose(recording.calls)))
    end("tampered", pack("forged", _forge(recording.calls)))
    end("error", "no-such.replay")
    end("wrong usage", "", "--no-such-option")
    workplace.write("agent.py", AGENT.replace("(1, 2, 3)", "(1, 2, 4)"))
    end("diverged")
    assert ended == {name: status for name, status in documented.items() if name in ended}
    assert len(ended) == 6
