"""Opening a recording changes nothing outside the data directory, whatever the recording names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.recording import bundle, jsonl
from spanreplay.recording.spool.frames import MAGIC, frame_header
from support.recordings import make_incident, split_request
from support.runs import iter_attributes, make_request

RUN: Final = make_incident().run_id
UP: Final = "../../../outside"


def _zip(content: bytes, add: Callable[[zipfile.ZipFile], None] = lambda archive: None, **header: object) -> bytes:
    """A `.replay` file with these frames, changed header fields and extra entries."""
    stated: dict[str, object] = {"format": "spanreplay", "version": 1, "run_id": RUN, "spans": content.count(b"\x00")}
    stated |= {"sha256": hashlib.sha256(content).hexdigest(), "spans": 5, **header}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("replay.json", json.dumps(stated))
        archive.writestr("spans.spool", content)
        add(archive)
    return target.getvalue()


def _frames(request: ExportTraceServiceRequest) -> bytes:
    return MAGIC + b"".join(frame_header(each) + each for each in split_request(request))


def _renamed(node: Any, path: str) -> Any:
    """Return the JSON with every text replaced by this path."""
    if isinstance(node, dict):
        return {key: _renamed(member, path) for key, member in node.items()}
    return [_renamed(member, path) for member in node] if isinstance(node, list) else path


def _with_paths(names: set[str], path: str) -> ExportTraceServiceRequest:
    """The run with a path as the text of these attributes, or as every text inside those that are JSON."""
    request = ExportTraceServiceRequest()
    request.CopyFrom(make_request(make_incident()))
    for each in iter_attributes(request):
        if each.key in names:
            text = each.value.string_value
            each.value.string_value = json.dumps(_renamed(json.loads(text), path)) if text[:1] in ("{", "[") else path
    return request


def _add_entries(outside: Path) -> Callable[[zipfile.ZipFile], None]:
    def add(archive: zipfile.ZipFile) -> None:
        for name in (UP, f"{UP}/deep", str(outside), "..\\..\\outside", ".spanreplay/../../outside", "spool/x.spool"):
            archive.writestr(name, b"hostile")
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(outside))
        archive.writestr("link/held", b"hostile")

    return add


def _hostile(outside: Path) -> dict[str, bytes]:
    """Hostile files: file name → content."""
    whole = make_request(make_incident())
    names = {each.key for each in iter_attributes(whole) if each.value.HasField("string_value")}
    assert {"spanreplay.run_id", "spanreplay.name", "spanreplay.lane"} <= names
    others = names - {"spanreplay.run_id"}
    found = {
        "entries.replay": _zip(_frames(whole), _add_entries(outside)),
        "header_up.replay": _zip(_frames(whole), run_id=UP),
        "header_whole.replay": _zip(_frames(whole), run_id=str(outside / "new")),
        "run_id.replay": _zip(_frames(_with_paths({"spanreplay.run_id"}, UP))),
        "run_id.spool": _frames(_with_paths({"spanreplay.run_id"}, UP)),
        "lines.jsonl": b"".join(jsonl.write_jsonl(RUN, split_request(whole))).replace(RUN.encode(), UP.encode()),
    }
    for number, (chosen, path) in enumerate(
        [(others, UP), (others, str(outside / "new")), *(({name}, UP) for name in sorted(others))]
    ):
        found[f"{number}.replay"] = bundle.pack(RUN, split_request(_with_paths(chosen, path)))
    return found


def test_r8_opening_a_hostile_recording_writes_nothing_outside(tmp_path: Path) -> None:
    """Archives with foreign entries, and runs with paths in every field, are shown, imported and exported in place."""
    here, outside, files = tmp_path / "a" / "b" / "here", tmp_path / "outside", tmp_path / "files"
    for each in (here, outside, files):
        each.mkdir(parents=True)
    (outside / "held").write_bytes(b"what the user has")
    (files / "first.replay").write_bytes(bundle.pack(RUN, split_request(make_request(make_incident()))))
    hostile = _hostile(outside)
    for name, content in hostile.items():
        (files / name).write_bytes(content)
    tests = str(Path(__file__).parents[2])
    paths = [str(files / name) for name in ("first.replay", *hostile)]
    done = subprocess.run(
        [sys.executable, "-m", "support.opened_files", *paths],
        env={**os.environ, "PYTHONPATH": tests, "HOME": str(tmp_path)},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["outside"] == []
    assert found["inside"] > 0
    assert found["done"]["entries.replay"] == 9
    assert sum(each > 5 for each in found["done"].values()) > 15
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "files", "outside"]
    assert [each.read_bytes() for each in outside.iterdir()] == [b"what the user has"]
