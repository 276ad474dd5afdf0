"""Compact records expand to exactly the spans that would have been written in their place."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import spanreplay
from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import DamagedRecording
from spanreplay.recording.bundle import load_file, unpack
from spanreplay.recording.otlp.otlp import build_recording, decode_attributes, iter_spans
from spanreplay.recording.seal.check import find_tampering
from spanreplay.recording.spool import SpoolCatalog, SpoolWriter, compact
from spanreplay.recording.spool.frames import HEADER, MAGIC_COMPACT, frame_header, scan_file, scan_file_records
from spanreplay.recording.spool.processor import SpoolSpanProcessor, encode_span
from spanreplay.redact import Redactor
from spanreplay.redact.processor import RedactingSpanProcessor
from spanreplay.runtime.calls.open_call import Crossing, open_crossing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.emit import Emitter
from spanreplay.runtime.run import Run
from support.in_process import inside
from support.runs import make_run_id

SECRET = "sk-proj-" + "aB3dE5gH7jK9" * 4


@spanreplay.boundary("tool", name="plain", effect="read")
def plain(a: Any, b: Any = None) -> Any:
    """A read."""
    return {"a": a, "b": b}


@spanreplay.boundary("tool", name="outer", effect="irreversible")
def outer(text: str) -> int:
    """A write that makes two calls, one of which fails."""
    plain(text)
    with pytest.raises(ValueError, match="no"):
        failing()
    return 1


@spanreplay.boundary("retriever", effect="pure")
def failing() -> None:
    """A call that fails."""
    raise ValueError("no “such” thing")


@spanreplay.boundary("compute")
def counted(n: int) -> Iterator[int]:
    """A generator."""
    yield from range(n)


def _everything(run: Run) -> None:
    """Make calls of every kind."""
    plain("x", b=[1, 2.5, None, {"k": True}])
    plain("größer “x”", {"ключ": "日本"})
    plain({"api_key": SECRET})
    plain(b"\x00\xff")
    plain("lone \ud800 surrogate")
    plain(object())
    outer("deep")
    assert list(counted(3)) == [0, 1, 2]
    spec = Spec("llm", "openai.chat.completions", "read", "openai_chat/1", {"model": "m"}, '{"body":{"model":"m"}}')
    spec.meta.update({"response_model": "m-1", "tokens_in": 3, "tokens_out": 5, "temperature": 0.5})
    spec.redactions["email"] = 2
    spec.call_id = "call_1"
    crossing = open_crossing(run, spec)
    crossing.reads = '[["time",1.5]]'
    crossing.mark()
    crossing.mark()
    crossing.close(spanreplay.model.call.Outcome.OK, '{"chunks":["größer"]}')
    open_crossing(run, Spec("tool", "left", "write", "http/1", {"method": "GET"}, '{"method":"GET"}'))


@dataclasses.dataclass
class Recorded:
    """A run in a spool, and the span that each of its records stands for."""

    directory: Path
    run: Run
    spans: list[bytes] = dataclasses.field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The run's spool files."""
        return sorted((self.directory / "spool").glob("*.spool"))

    def as_spans(self) -> Recording:
        """The recording that those spans and the root make."""
        compacts = [r for path in self.files for r in scan_file_records(path)]
        roots = [r.payload for r in compacts if r.context is None]
        return build_recording(map(ExportTraceServiceRequest.FromString, [*roots, *self.spans]), self.run.run_id)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A run with calls of every kind; each of its records is made as a span too."""
    writer = SpoolWriter(tmp_path, make_run_id(7))
    redactor = Redactor(b"k" * 32, "b").run()
    chain = RedactingSpanProcessor(redactor, [SpoolSpanProcessor(writer)])
    run = Run(
        app="test",
        run_id=make_run_id(7),
        emitter=Emitter([chain], Resource({"service.name": "größer", "n": 3})),
        redactor=redactor,
    )
    result = Recorded(tmp_path, run)

    class Keeper(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            result.spans.append(encode_span(span))

    spans = Emitter([Keeper()], Resource({"service.name": "größer", "n": 3}))
    emit = Crossing._emit

    def emit_both(crossing: Crossing, outcome: str, response: str = "", end_seq: int = -1) -> None:
        emit(crossing, outcome, response, end_seq)
        payload = [r.payload for path in result.files for r in scan_file_records(path)][-1]
        end_ns = compact.decode_call(payload)[0].end_ns
        record = crossing.to_record(outcome, response, end_seq, end_ns)

        def count(of_span: str) -> bool:
            assert (crossing.seq, of_span) in run.leaves.take()
            return True

        assert spans.emit_call(
            record, count, is_shown=crossing.is_shown, is_parent_remote=crossing.parent_context.is_remote
        )

    monkeypatch.setattr(Crossing, "_emit", emit_both)
    with inside(run):
        _everything(run)
        run.finish()
    writer.close()
    return result


def test_compact_records_are_the_spans_that_they_stand_for(recorded: Recorded) -> None:
    """Each record expands, byte for byte, to the span of the same call, in the order of writing."""
    (path,) = recorded.files
    assert path.read_bytes().startswith(MAGIC_COMPACT)
    compacts = [r for r in scan_file_records(path) if r.context is not None]
    assert len(compacts) == len(recorded.spans) > 12
    for record, span in zip(compacts, recorded.spans, strict=True):
        assert record.context is not None
        assert compact.expand(record.payload, record.context) == span


def test_every_way_of_reading_gives_the_same_recording(recorded: Recorded) -> None:
    """The catalog, the loose file and the bundle read the same as from spans, and find no tampering."""
    expected = recorded.as_spans()
    catalog = SpoolCatalog(recorded.directory)
    exported = catalog.export(recorded.run.run_id)
    run_id, payloads = unpack(exported)
    assert run_id == recorded.run.run_id
    assert catalog.load(recorded.run.run_id) == expected
    assert load_file(recorded.files[0]) == expected
    assert build_recording(map(ExportTraceServiceRequest.FromString, payloads), run_id) == expected
    assert find_tampering(expected) == ""
    assert expected.root.manifest["leaf_version"] == 2


def test_keys_are_made_when_they_are_read(recorded: Recorded) -> None:
    """The key of a leaf call is not in its compact record, but in every span read from it."""
    calls = SpoolCatalog(recorded.directory).load(recorded.run.run_id).calls
    (path,) = recorded.files
    content = path.read_bytes()
    plain_keys = {c.key.encode() for c in calls if c.name == "plain" and c.request.isascii()}
    assert plain_keys
    assert all(len(key) == 64 for key in plain_keys)
    assert not any(key in content for key in plain_keys)
    attributes = [
        decode_attributes(filed.span.attributes)
        for frame in scan_file(path)
        for filed in iter_spans(ExportTraceServiceRequest.FromString(frame.payload))
    ]
    assert plain_keys <= {str(a.get(names.KEY)).encode() for a in attributes}


def test_n15_forged_key_of_a_leaf_call_is_found(recorded: Recorded) -> None:
    """A key that is not part of the leaf hash is checked against its request."""
    expected = recorded.as_spans()
    first, *rest = expected.calls
    forged = Recording(expected.root, (dataclasses.replace(first, key="0" * 64), *rest))
    assert "key of call 1 (tool:plain)" in find_tampering(forged)


@pytest.mark.parametrize("field", ["request", "response", "name", "index", "end_seq", "effect", "code"])
def test_n15_change_of_any_call_is_found(field: str, recorded: Recorded) -> None:
    """One changed field of one call is found."""
    expected = recorded.as_spans()
    first, *rest = expected.calls
    other = getattr(first, field)
    changed: Any = {field: other + (1 if isinstance(other, int) else " ")}
    forged = Recording(expected.root, (dataclasses.replace(first, **changed), *rest))
    assert find_tampering(forged)


def test_recordings_of_the_first_leaf_version_are_still_checked(recorded: Recorded) -> None:
    """A manifest without a version has leaves of version 1; an unknown version is not accepted."""
    from spanreplay.recording.seal.tree import hash_leaf, hash_root

    expected = recorded.as_spans()
    finished = [call for call in expected.calls if call.outcome != "open"]
    old = {"root": hash_root(hash_leaf(call, 1) for call in finished), "leaves": len(finished)}
    assert find_tampering(Recording(dataclasses.replace(expected.root, manifest=old), expected.calls)) == ""
    newer = {**expected.root.manifest, "leaf_version": 3}
    assert "leaf version 3" in find_tampering(
        Recording(dataclasses.replace(expected.root, manifest=newer), expected.calls)
    )


def test_no_secret_is_in_a_compact_record(recorded: Recorded) -> None:
    """Values are redacted before they are written."""
    content = recorded.files[0].read_bytes()
    assert SECRET.encode() not in content
    assert b"rdx-" in content


def test_frames_are_read_from_any_offset(recorded: Recorded) -> None:
    """A delivery that resumes in the middle of a file still knows the context."""
    (path,) = recorded.files
    frames = list(scan_file(path))
    for number, frame in enumerate(frames):
        assert list(scan_file(path, frame.end)) == frames[number + 1 :]
        assert frame.end > frame.start


def test_processor_that_is_added_later_sees_spans(tmp_path: Path) -> None:
    """A processor that is added later gets redacted spans, and the spool holds the same calls."""
    seen: list[ReadableSpan] = []

    class Keeper(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            seen.append(span)

    writer = SpoolWriter(tmp_path, make_run_id(8))
    redactor = Redactor(b"k" * 32, "b").run()
    chain = RedactingSpanProcessor(redactor, [SpoolSpanProcessor(writer)])
    emitter = Emitter([chain], Resource({}))
    with inside(Run(app="test", run_id=make_run_id(8), emitter=emitter, redactor=redactor)) as run:
        plain(1)
        chain.add(Keeper())
        plain({"password": SECRET})
        run.finish()
    writer.close()
    shown = [span.attributes[names.REQUEST] for span in seen if span.name == "plain" and span.attributes]
    assert len(shown) == 1
    assert SECRET not in str(shown[0])
    calls = SpoolCatalog(tmp_path).load(make_run_id(8)).calls
    assert [json.loads(call.request)["arguments"]["b"] for call in calls] == [None, None]
    assert calls[1].request == shown[0]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x02",
        b"\x02\n\n\n",
        b"\x02a b c d e ok\n[]\n0 0 0 0 0 0 0 0\n",
        b"\x021 2 0 -1 -1 ok\n[1,2]\n1 2 3 4 5 0 0 0 0\n",
        b"\x021 2 0 -1 -1 ok\n" + b"[" * 100_000 + b"\n1 2 3 4 5 0 0 0 0\n",
        b'\x021 2 0 -1 -1 ok\n["r","tool","n","read","tool/1","main","","","",[],[],[]]\n1 2 3 4 5 0 1 0 0\n\xff',
    ],
    ids=["empty", "lines", "no_numbers", "no_names", "deep", "no_text"],
)
def test_damage_inside_a_record_is_said(payload: bytes, tmp_path: Path) -> None:
    """A record with a valid checksum and invalid content is an error that names the file and the byte."""
    context = compact.encode_context(make_run_id(9), b"", b"")
    head = MAGIC_COMPACT + frame_header(context) + context
    path = tmp_path / "spool" / f"{make_run_id(9)}.1-a.spool"
    path.parent.mkdir()
    path.write_bytes(head + frame_header(payload) + payload)
    with pytest.raises(DamagedRecording, match=f"damaged at byte {len(head)}"):
        SpoolCatalog(tmp_path).load(make_run_id(9))
    with pytest.raises(DamagedRecording, match=f"damaged at byte {len(head)}"):
        list(scan_file(path))


@pytest.mark.parametrize("context", [b"\x01", b"\x01{}", b"\x0a", b'\x01{"run_id":"r","resource":"?","scope":""}'])
def test_damaged_context_is_said(context: bytes, tmp_path: Path) -> None:
    """A file whose context cannot be read is damaged at its beginning."""
    path = tmp_path / "a.spool"
    path.write_bytes(MAGIC_COMPACT + frame_header(context) + context)
    with pytest.raises(DamagedRecording, match="context"):
        list(scan_file(path))


def test_context_that_was_cut_off_is_an_empty_file(tmp_path: Path) -> None:
    """A file that ends inside its context counts as empty."""
    context = compact.encode_context(make_run_id(9), b"r", b"s")
    path = tmp_path / "a.spool"
    for size in range(len(MAGIC_COMPACT), len(MAGIC_COMPACT) + HEADER.size + len(context)):
        path.write_bytes((MAGIC_COMPACT + frame_header(context) + context)[:size])
        assert list(scan_file(path)) == []


def test_two_runs_in_one_writer_stay_apart(tmp_path: Path) -> None:
    """A run with another resource continues in a file with its own context."""
    writer = SpoolWriter(tmp_path, make_run_id(1))
    redactor = Redactor(b"k" * 32, "b").run()
    loaded: dict[str, list[CallRecord]] = {}
    processor = SpoolSpanProcessor(writer)
    for number in (1, 2, 1):
        emitter = Emitter([processor], Resource({"run": number}))
        with inside(Run(app="test", run_id=make_run_id(number), emitter=emitter, redactor=redactor)):
            plain(number)
    writer.close()
    for number in (1, 2):
        recording = SpoolCatalog(tmp_path).load(make_run_id(number))
        loaded[recording.run_id] = list(recording.calls)
    assert [len(calls) for calls in loaded.values()] == [2, 1]


def test_removed_directory_is_soon_noticed_by_calls(tmp_path: Path) -> None:
    """Calls check for their file every few milliseconds; every record sent to a removed one is counted."""
    writer = SpoolWriter(tmp_path / "data", make_run_id(1))
    writer.context = compact.encode_context(make_run_id(1), b"", b"")
    assert writer.append(b"\x02")
    path, appended = writer.path, 1
    shutil.rmtree(tmp_path / "data")
    deadline = time.monotonic() + 20
    while writer.path == path:
        assert time.monotonic() < deadline
        assert writer.append(b"\x02")
        appended += 1
    assert writer.path is not None
    kept = list(scan_file_records(writer.path))
    writer.close()
    assert len(kept) == 1
    assert writer.dropped + len(kept) == appended
