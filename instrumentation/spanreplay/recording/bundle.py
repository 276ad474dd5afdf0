"""The `.replay` file: one run in one zip file that a colleague can replay on a laptop.

`replay.json` holds format, version, run id, span count and the SHA-256 of `spans.spool`, which has the format of a
spool file. Packing is deterministic: equal payloads give equal bytes. `runs/RUN_ID.replay` are the runs that a replay
of this one needs: the start of the process that served a unit.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spanreplay.model.errors import (
    AmbiguousRun,
    DamagedRecording,
    ForeignFile,
    NewerSchema,
    RunNotFound,
    SourceError,
)
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.inflate import Inflated, room_of
from spanreplay.recording.jsonl import is_json, read_jsonl
from spanreplay.recording.spool.directory import is_run_id, run_of_file
from spanreplay.recording.spool.frames import HEADER, MAGIC, Record, frame_header, scan_file_records, scan_frames
from spanreplay.recording.spool.limits import (
    BUNDLE_BYTES_MAX,
    BUNDLE_DIRECTORY_BYTES_MAX,
    BUNDLE_HEADER_BYTES_MAX,
)
from spanreplay.recording.spool.requests import add_record, count_spans, parse_payload

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.recording.otlp.otlp import RecordingBuilder

__all__ = ["Bundle", "add_runs", "load_file", "load_inner", "pack", "read_bundle", "unpack"]

FORMAT: Final = "spanreplay"
VERSION: Final = 1
_HEADER_NAME: Final = "replay.json"
_SPANS_NAME: Final = "spans.spool"
_INNER_NAME: Final = "runs/{}.replay"
_ZIP: Final = b"PK\x03\x04"
_END_RECORD: Final = struct.Struct("<4s4H2LH")
_TAIL_BYTES: Final = BUNDLE_DIRECTORY_BYTES_MAX + 65_557
"""The end of a zip file, which lists its entries."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_HINT_AGAIN: Final = "get the file again: spanreplay export RUN"
_HINT_FOREIGN: Final = "a .replay file is written by: spanreplay export RUN"
_HINT_NEWER: Final = f"upgrade spanreplay: {install_command()}"


@dataclass(frozen=True)
class Bundle:
    """A `.replay` file after reading and checking; `sha256` is the hash of its `spans.spool`."""

    run_id: str
    payloads: tuple[bytes, ...]
    spans: int
    sha256: str


def _add_entry(archive: zipfile.ZipFile, name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = method
    entry.create_system = 3
    entry.external_attr = 0o600 << 16
    archive.writestr(entry, content)


def pack(run_id: str, payloads: Iterable[bytes]) -> bytes:
    """Pack a run into the bytes of a `.replay` file; keeps the order of payloads.

    Raises: DamagedRecording if a payload is not an OTLP request; SourceError above BUNDLE_BYTES_MAX.
    """
    if not is_run_id(run_id):
        raise ValueError(f"not a run id: {run_id!r}")
    parts = [MAGIC]
    size = len(MAGIC)
    spans = 0
    for payload in payloads:
        size += HEADER.size + len(payload)
        if size > BUNDLE_BYTES_MAX:
            raise SourceError(
                f"run {run_id} is larger than a .replay file may be: {BUNDLE_BYTES_MAX} bytes",
                hint="replay it from the spool directory or the service",
            )
        spans += count_spans(parse_payload(payload, f"run {run_id}"))
        parts += (frame_header(payload), payload)
    content = b"".join(parts)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "run_id": run_id,
        "spans": spans,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    packed = _zip(header, content, zipfile.ZIP_DEFLATED)
    # Readers refuse extreme compression ratios (one letter a million times): store such content uncompressed
    is_readable = len(content) <= room_of(len(packed) - BUNDLE_HEADER_BYTES_MAX)
    return packed if is_readable else _zip(header, content, zipfile.ZIP_STORED)


def add_runs(content: bytes, runs: Mapping[str, bytes]) -> bytes:
    """Add other runs, by their ids and each as the bytes of a `.replay` file, to the bytes of a `.replay` file."""
    target = io.BytesIO(content)
    with zipfile.ZipFile(target, "a") as archive:
        for run_id, inner in runs.items():
            _add_entry(archive, _INNER_NAME.format(run_id), inner, zipfile.ZIP_STORED)
    return target.getvalue()


def _zip(header: dict[str, object], content: bytes, method: int) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        _add_entry(archive, _HEADER_NAME, json.dumps(header).encode())
        _add_entry(archive, _SPANS_NAME, content, method)
    return target.getvalue()


def _foreign(name: str, what: str) -> ForeignFile:
    return ForeignFile(f"{name} is not a .replay file: {what}", hint=_HINT_FOREIGN)


def _damaged(name: str, what: str) -> DamagedRecording:
    return DamagedRecording(f"{name} is damaged: {what}", hint=_HINT_AGAIN)


def _check_end_record(data: bytes, name: str) -> None:
    """Bound the table of contents before zipfile reads it into memory."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - 65_557))
    if at < 0 or at + _END_RECORD.size > len(data):
        raise _damaged(name, f"its end is missing after {len(data)} bytes")
    _, _, _, _, entries, directory_bytes, _, _ = _END_RECORD.unpack_from(data, at)
    if directory_bytes > BUNDLE_DIRECTORY_BYTES_MAX or data[at - 20 : at - 16] == b"PK\x06\x07":
        raise _foreign(name, f"its table of contents lists {entries} entries in {directory_bytes} bytes")


def _open_entry(archive: zipfile.ZipFile, data: bytes, entry_name: str, bytes_max: int, name: str) -> Inflated:
    try:
        entry = archive.getinfo(entry_name)
    except KeyError:
        raise _foreign(name, f"it has no {entry_name}") from None
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 0x1:
        raise _foreign(name, f"{entry_name} is encrypted or packed in an unknown way")
    limit = min(bytes_max, room_of(entry.compress_size))
    if entry.file_size > limit:
        raise _foreign(name, f"{entry_name} would unpack to {entry.file_size} bytes, limit {limit}")
    return Inflated(data, entry)


def _parse_header(text: bytes, name: str) -> dict[str, object]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise _damaged(name, f"{_HEADER_NAME} is not JSON") from exc
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _foreign(name, f"{_HEADER_NAME} does not say format {FORMAT!r}")
    version = header.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(name, f"{_HEADER_NAME} has no version")
    if version > VERSION:
        raise NewerSchema(f"{name} has version {version}, this spanreplay reads up to {VERSION}", hint=_HINT_NEWER)
    if not isinstance(header.get("run_id"), str) or not is_run_id(header["run_id"]):
        raise _damaged(name, f"{_HEADER_NAME} has no run id")
    if not isinstance(header.get("spans"), int) or not isinstance(header.get("sha256"), str):
        raise _damaged(name, f"{_HEADER_NAME} lacks the count of spans or their checksum")
    return header


def _read_spool(content: Inflated, bytes_whole: int, name: str) -> tuple[bytes, ...]:
    payloads, end = [], len(MAGIC)
    for frame in scan_frames(content, f"{name}:{_SPANS_NAME}"):  # type: ignore[arg-type]  # reads and seeks as one
        payloads.append(frame.payload)
        end = frame.end
    if end != bytes_whole:
        raise _damaged(name, f"{_SPANS_NAME} ends inside a record")
    return tuple(payloads)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """A block that reads a zip file. Raises: DamagedRecording for any of its errors."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as exc:
        raise _damaged(name, f"the zip file cannot be read ({exc})") from exc
    except (struct.error, OverflowError, OSError) as exc:
        raise _damaged(name, f"the zip file cannot be read ({type(exc).__name__})") from exc


def read_bundle(data: bytes, *, name: str = "the bundle", bytes_max: int = BUNDLE_BYTES_MAX) -> Bundle:
    """Read and check the bytes of a `.replay` file; errors call it `name`.

    Raises: ForeignFile, DamagedRecording, NewerSchema.
    """
    if not data.startswith(_ZIP):
        raise _foreign(name, "it does not begin like a zip file")
    _check_end_record(data, name)
    with _reading(name), zipfile.ZipFile(io.BytesIO(data)) as archive:
        head = _open_entry(archive, data, _HEADER_NAME, BUNDLE_HEADER_BYTES_MAX, name)
        header = _parse_header(head.read(), name)
        content = _open_entry(archive, data, _SPANS_NAME, bytes_max, name)
        payloads = _read_spool(content, archive.getinfo(_SPANS_NAME).file_size, name)
        content.read()
    sha256 = content.sha256.hexdigest()
    if sha256 != header["sha256"]:
        raise _damaged(name, f"the checksum of {_SPANS_NAME} does not match")
    spans = header["spans"]
    assert isinstance(spans, int)
    return Bundle(str(header["run_id"]), payloads, spans, sha256)


def load_inner(path: Path, run_id: str) -> Recording | None:
    """Load a run that was added to a `.replay` file; None if that has no such run, or is no `.replay` file.

    Raises: ForeignFile, DamagedRecording, NewerSchema.
    """
    name = _INNER_NAME.format(run_id)
    size = path.stat().st_size
    with path.open("rb") as stream:
        is_zip = stream.read(len(_ZIP)) == _ZIP
        stream.seek(max(0, size - _TAIL_BYTES))
        is_listed = name.encode() in stream.read()
    if not is_run_id(run_id) or not is_zip or not is_listed or size > BUNDLE_BYTES_MAX:
        return None
    data, place = path.read_bytes(), f"{path}:{name}"
    _check_end_record(data, str(path))
    with _reading(str(path)), zipfile.ZipFile(io.BytesIO(data)) as archive:
        if name not in archive.namelist():
            return None
        inner = _open_entry(archive, data, name, BUNDLE_BYTES_MAX, str(path)).read()
    bundle = read_bundle(inner, name=place)
    if bundle.run_id != run_id:
        raise _damaged(place, f"it holds run {bundle.run_id}")
    return _load(bundle.payloads, run_id, place)


def unpack(data: bytes, *, name: str = "the bundle") -> tuple[str, list[bytes]]:
    """The run id and the payloads of a `.replay` file.

    Raises: ForeignFile, DamagedRecording, NewerSchema.
    """
    bundle = read_bundle(data, name=name)
    return bundle.run_id, list(bundle.payloads)


def _load(payloads: Iterable[bytes], run_id: str, name: str) -> Recording:
    from spanreplay.recording.otlp.otlp import RecordingBuilder

    builder = RecordingBuilder(run_id)
    for payload in payloads:
        builder.add_request(parse_payload(payload, name))
    return _build(builder, name)


def _build(builder: RecordingBuilder, name: str) -> Recording:
    try:
        return builder.build()
    except RunNotFound as exc:
        raise RunNotFound(f"{name} holds no recorded calls", hint="the run was killed before its first call") from exc


def _only_run(records: Sequence[Record], path: Path) -> str:
    """The run in a loose spool file: the run it is named after, else its only run."""
    from spanreplay.recording.otlp.otlp import iter_spans

    runs = {record.context.run_id for record in records if record.context is not None}
    plain = [parse_payload(record.payload, str(path)) for record in records if record.context is None]
    runs |= {filed.run_id for request in plain for filed in iter_spans(request)} - {""}
    named = run_of_file(path)
    if named in runs or not runs:
        return named
    if len(runs) > 1:
        raise AmbiguousRun(
            f"{path} holds {len(runs)} runs: {', '.join(sorted(runs)[:10])}",
            hint="put the file into .spanreplay/spool and name the run by its id",
        )
    return runs.pop()


def load_file(path: Path) -> Recording:
    """Load the recording in a `.replay` file, a `.jsonl` file or a raw `.spool` file.

    Raises: RunNotFound if the file is missing or holds no call; ForeignFile, DamagedRecording,
    NewerSchema, AmbiguousRun.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_ZIP))
            size = path.stat().st_size
    except FileNotFoundError as exc:
        raise RunNotFound(f"no such file: {path}", hint="spanreplay ls lists the runs that are here") from exc
    except OSError as exc:
        raise ForeignFile(f"cannot read {path}: {exc.strerror}", hint=_HINT_FOREIGN) from exc
    if head == _ZIP:
        if size > BUNDLE_BYTES_MAX:
            raise _foreign(str(path), f"{size} bytes, limit {BUNDLE_BYTES_MAX}")
        bundle = read_bundle(path.read_bytes(), name=str(path))
        return _load(bundle.payloads, bundle.run_id, str(path))
    if is_json(head):
        run_id, lines = read_jsonl(path.read_bytes(), name=str(path))
        return _load(lines, run_id, str(path))
    records = list(scan_file_records(path))
    from spanreplay.recording.otlp.otlp import RecordingBuilder

    builder = RecordingBuilder(_only_run(records, path))
    for record in records:
        add_record(builder, record, str(path))
    return _build(builder, str(path))
