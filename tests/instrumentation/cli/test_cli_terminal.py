"""Nothing in a recording or a verdict can control a terminal, a CI log or the viewer of a report."""

from __future__ import annotations

import copy
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss, SourceError, Unserializable
from spanreplay.report.formats import render
from support.recordings import make_incident, split_request
from support.runs import iter_attributes, make_request

Invoke = Callable[..., Result]
HOSTILE = "\x1b]0;PWN\x07\x1b[2J\x9b31m\u202e\u2028\r"
UNSAFE = {each for each in HOSTILE if not each.isprintable()}
GOLDEN = Path(__file__).parents[1] / "report" / "golden"


def _unsafe(text: str) -> set[str]:
    return UNSAFE & set(text)


def _write(data_dir: Path, request: ExportTraceServiceRequest, run_id: str) -> None:
    frames = [b"SPRSPOOL1\n"]
    frames += [struct.pack("<II", len(p), zlib.crc32(p)) + p for p in split_request(request)]
    (data_dir / "spool").mkdir(parents=True, exist_ok=True)
    (data_dir / "spool" / f"{run_id}.1-0.spool").write_bytes(b"".join(frames))


def test_r8_no_field_of_a_recording_reaches_the_terminal_raw(spanreplay: Invoke, data_dir: Path) -> None:
    """Every text of every span, replaced by control characters, is escaped by every command that shows it."""
    recording = make_incident()
    request = make_request(recording)
    names = {each.key for each in iter_attributes(request) if each.value.HasField("string_value")}
    assert {"spanreplay.outcome", "spanreplay.name", "spanreplay.lane"} <= names
    shown = 0
    for name in sorted(names - {"spanreplay.run_id"}):
        changed = ExportTraceServiceRequest()
        changed.CopyFrom(request)
        for each in iter_attributes(changed):
            if each.key == name:
                each.value.string_value = HOSTILE
        _write(data_dir, changed, recording.run_id)
        for arguments in (("show", "latest"), ("show", "latest", "--call", "1"), ("show", "latest", "--json"), ("ls",)):
            result = spanreplay(*arguments)
            shown += "PWN" in result.output
            assert not _unsafe(result.output), (name, arguments, result.output)
    assert shown > 20


def _texts(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, str):
        yield path
    for step, member in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _texts(member, (*path, step))


@pytest.mark.parametrize("form", ["text", "junit", "github", "sarif", "html"])
def test_r8_no_text_of_a_verdict_reaches_a_report_raw(form: str) -> None:
    """Every text of a verdict, replaced by control characters, is escaped in every format."""
    verdict = json.loads((GOLDEN / "changed_call.json").read_text(encoding="utf-8"))
    for path in _texts(verdict):
        changed = node = copy.deepcopy(verdict)
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = HOSTILE + "\n::error::PWN"
        try:
            report = render(form, changed)
        except (KeyError, ValueError):  # a closed set: the command refuses such a verdict
            continue
        assert not _unsafe(report), path
        if form != "html":  # no CI reads HTML as a log
            assert not any(line.startswith("::error::PWN") for line in report.splitlines()), path


def test_r8_what_python_prints_of_our_errors_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception of ours that ends the agent, and our lines on standard error, show names escaped."""
    for exc in (ReplayMiss(HOSTILE), SourceError(HOSTILE, hint=HOSTILE), Unserializable("$", HOSTILE)):
        assert not _unsafe(str(exc) + getattr(exc, "hint", ""))
        assert "\\x1b]0;PWN\\x07" in str(exc)
    guard.write_stderr(HOSTILE)
    assert not _unsafe(capsys.readouterr().err)
    code = f"from spanreplay.model.errors import ReplayMiss; raise ReplayMiss({HOSTILE!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=600)
    assert not _unsafe(done.stderr.partition("ReplayMiss: ")[2].replace("\r", ""))
