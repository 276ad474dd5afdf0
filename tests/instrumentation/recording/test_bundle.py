"""The `.replay` file: deterministic, checked, and safe to open whoever made it."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.model.errors import (
    AmbiguousRun,
    DamagedRecording,
    ForeignFile,
    NewerSchema,
    RunNotFound,
    SourceError,
)
from spanreplay.recording import bundle
from spanreplay.recording.spool.frames import MAGIC, frame_header, write_spool_file
from support.spool_tools import OTHER_RUN, RUN, call, request, whole_run


def _rezip(
    data: bytes,
    change: Callable[[dict[str, bytes]], None],
    *,
    compression: int = zipfile.ZIP_DEFLATED,
    spans: tuple[bytes, int, int] | None = None,
) -> bytes:
    """The same bundle with changed entries; `spans` is already packed, with the size and the checksum to state."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {n: archive.read(n) for n in archive.namelist()}
    change(entries)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content if spans is None or name != "spans.spool" else b"")
    if spans is None:
        return target.getvalue()
    return _replace_last(target.getvalue(), *spans)


def _replace_last(data: bytes, packed: bytes, size: int, crc: int) -> bytes:
    """The zip file with its last entry's data replaced, stated with this size and checksum."""
    directory, last = data.find(b"PK\x01\x02"), data.rfind(b"PK\x03\x04")
    names = last + 30 + struct.unpack_from("<H", data, last + 26)[0]
    entries = bytearray(data[directory:])
    struct.pack_into("<LLL", entries, entries.rfind(b"PK\x01\x02") + 16, crc, len(packed), size)
    struct.pack_into("<L", entries, entries.rfind(b"PK\x05\x06") + 16, names + len(packed))
    local = bytearray(data[last:names])
    struct.pack_into("<LLL", local, 14, crc, len(packed), size)
    return data[:last] + bytes(local) + packed + bytes(entries)


def _edit_header(**fields: object) -> Callable[[dict[str, bytes]], None]:
    def change(entries: dict[str, bytes]) -> None:
        entries["replay.json"] = json.dumps(json.loads(entries["replay.json"]) | fields).encode()

    return change


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(st.text(max_size=200), max_size=6))
def test_bundle_round_trip(bodies: list[str]) -> None:
    """Any payloads come back byte for byte and in order."""
    payloads = [request({"text": body}, span_id=n + 1) for n, body in enumerate(bodies)]
    assert bundle.unpack(bundle.pack(RUN, payloads)) == (RUN, payloads)


def test_equal_runs_give_equal_bytes() -> None:
    """Packing depends only on the payloads: no time, no machine name."""
    assert bundle.pack(RUN, whole_run()) == bundle.pack(RUN, iter(whole_run()))


def test_header_is_the_contract() -> None:
    """replay.json states format, version, run, count and checksum."""
    read = bundle.read_bundle(bundle.pack(RUN, whole_run(calls=3)))
    with zipfile.ZipFile(io.BytesIO(bundle.pack(RUN, whole_run(calls=3)))) as archive:
        header = json.loads(archive.read("replay.json"))
    assert header == {"format": "spanreplay", "version": 1, "run_id": RUN, "spans": 4, "sha256": read.sha256}


def test_s62_file_is_all_that_a_laptop_needs(tmp_path: Path) -> None:
    """A `.replay` file and a raw spool file load to the same recording, with no directory around them."""
    (tmp_path / "a.replay").write_bytes(bundle.pack(RUN, whole_run(calls=3)))
    write_spool_file(tmp_path / "b.spool", whole_run(calls=3))
    recording = bundle.load_file(tmp_path / "a.replay")
    assert recording == bundle.load_file(tmp_path / "b.spool")
    assert (recording.run_id, len(recording.calls), recording.completeness().is_complete) == (RUN, 3, True)


def test_truncated_bundle_is_damaged_at_every_length() -> None:
    """A bundle cut anywhere raises one clear error and never yields a part of its content."""
    data = bundle.pack(RUN, whole_run(calls=1))
    for cut in range(4, len(data)):
        with pytest.raises(DamagedRecording, match="is damaged"):
            bundle.unpack(data[:cut])


def test_flipped_byte_never_alters_a_payload() -> None:
    """Any flipped byte raises a SourceError, or leaves the payloads as they were."""
    payloads = whole_run(calls=1)
    data = bundle.pack(RUN, payloads)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            read = bundle.unpack(flipped)[1]
        except SourceError:
            continue
        assert read == payloads, at


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (_edit_header(version=2), NewerSchema, "version 2, this spanreplay reads up to 1"),
        (_edit_header(version=0), DamagedRecording, "no version"),
        (_edit_header(format="other"), ForeignFile, "does not say format"),
        (_edit_header(run_id="../../x"), DamagedRecording, "no run id"),
        (_edit_header(sha256="0" * 64), DamagedRecording, "checksum of spans.spool"),
        (_edit_header(spans="4"), DamagedRecording, "lacks the count"),
        (lambda e: e.update({"replay.json": b"{"}), DamagedRecording, "is not JSON"),
        (lambda e: e.update({"replay.json": b"[" * 60_000}), DamagedRecording, "is not JSON"),
        (lambda e: e.update({"replay.json": b"x" * 70_000}), ForeignFile, "would unpack to 70000 bytes"),
        (lambda e: e.pop("replay.json"), ForeignFile, r"has no replay\.json"),
        (lambda e: e.pop("spans.spool"), ForeignFile, r"has no spans\.spool"),
    ],
    ids=[
        "newer",
        "no_version",
        "other_format",
        "path_as_run_id",
        "tampered_checksum",
        "count_is_text",
        "header_cut",
        "header_nested",
        "header_huge",
        "no_header",
        "no_spans",
    ],
)
def test_bad_bundle_is_refused(change: Callable[[dict[str, bytes]], None], error: type[SourceError], says: str) -> None:
    """Each kind of bad bundle has its own one-line error with a hint."""
    with pytest.raises(error, match=says) as caught:
        bundle.unpack(_rezip(bundle.pack(RUN, whole_run()), change))
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_torn_spans_in_a_bundle_are_damage() -> None:
    """A torn tail that a live spool may have is damage in a checked file."""

    def tear(entries: dict[str, bytes]) -> None:
        import hashlib

        entries["spans.spool"] = entries["spans.spool"][:-1]
        _edit_header(sha256=hashlib.sha256(entries["spans.spool"]).hexdigest())(entries)

    with pytest.raises(DamagedRecording, match="ends inside a record"):
        bundle.unpack(_rezip(bundle.pack(RUN, whole_run()), tear))


def test_zip_bomb_is_refused_unread() -> None:
    """A bundle that would unpack to more than the limit is refused by its declared size."""
    bomb = _rezip(bundle.pack(RUN, []), lambda e: e.update({"spans.spool": MAGIC + bytes(3_000_000)}))
    assert len(bomb) < 10_000
    with pytest.raises(ForeignFile, match="would unpack to 3000010 bytes, limit 1000000"):
        bundle.read_bundle(bomb, bytes_max=1_000_000)


def test_zip_that_lies_about_its_size_is_damaged() -> None:
    """A declared size smaller than the content does not smuggle the content in."""
    data = bytearray(bundle.pack(RUN, whole_run()))
    entry = data.rfind(b"PK\x01\x02")
    struct.pack_into("<L", data, entry + 24, 20)
    with pytest.raises(DamagedRecording):
        bundle.unpack(bytes(data))


def _bomb(kind: str) -> bytes:
    """A small file that would be large: of zeros, of whole frames, or with a false stated size."""
    packer, crc, size = zlib.compressobj(9, zlib.DEFLATED, -15), 0, 0
    packed = []
    frame = frame_header(bytes(1 << 20)) + bytes(1 << 20)
    for piece in (MAGIC, *[frame if kind == "frames" else bytes(1 << 20)] * 100):
        packed.append(packer.compress(piece))
        crc, size = zlib.crc32(piece, crc), size + len(piece)
    packed.append(packer.flush())
    if kind == "lie":
        size, crc = 1000, zlib.crc32((MAGIC + bytes(1000))[:1000])
    return _rezip(bundle.pack(RUN, []), lambda e: None, spans=(b"".join(packed), size, crc))


@pytest.mark.parametrize("kind", ["zeros", "frames", "lie"])
def test_r8_zip_bomb_takes_no_memory(kind: str) -> None:
    """A file of 100 kB that holds 100 MB is refused within 40 MB of memory, whatever size it states."""
    bomb = _bomb(kind)
    assert len(bomb) < 500_000
    tracemalloc.start()
    try:
        with pytest.raises(SourceError):
            bundle.read_bundle(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000


def test_r8_zip_with_more_behind_its_stated_size_is_damaged() -> None:
    """A stated size and checksum of a first part do not hide the rest."""
    content = MAGIC + b"".join(frame_header(p) + p for p in whole_run())
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    first = len(MAGIC)
    hidden = _rezip(bundle.pack(RUN, []), lambda e: None, spans=(packed, first, zlib.crc32(content[:first])))
    with pytest.raises(DamagedRecording, match="larger than its stated size"):
        bundle.read_bundle(hidden)


def test_bundle_that_packs_too_well_is_stored_as_it_is() -> None:
    """A run that compresses so well that it would look like a bomb is stored uncompressed, so that it can be read."""
    payloads = [request({"text": "a" * (1 << 20)}, span_id=n + 1) for n in range(40)]
    assert bundle.unpack(bundle.pack(RUN, payloads)) == (RUN, payloads)


def test_zip_with_many_entries_is_refused_unread() -> None:
    """A table of contents of a million entries is not read into memory."""
    crowded = _rezip(bundle.pack(RUN, []), lambda e: e.update({f"{n:060}": b"" for n in range(1000)}))
    with pytest.raises(ForeignFile, match="table of contents lists 1002 entries"):
        bundle.unpack(crowded)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_unusual_compression_is_refused(compression: int) -> None:
    """Only the compression that we write is unpacked."""
    with pytest.raises(ForeignFile, match="packed in an unknown way"):
        bundle.unpack(_rezip(bundle.pack(RUN, whole_run()), lambda e: None, compression=compression))


@settings(max_examples=100, deadline=None)
@given(junk=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda b: b"PK\x03\x04" + b)))
def test_junk_is_refused(junk: bytes) -> None:
    """Random bytes raise a SourceError and nothing else."""
    with pytest.raises(SourceError):
        bundle.unpack(junk)


def test_payload_that_is_no_otlp_cannot_be_packed() -> None:
    """A bundle holds OTLP requests only."""
    with pytest.raises(DamagedRecording, match="not an OTLP request"):
        bundle.pack(RUN, [b"\xff\xff\xff"])


def test_missing_file_is_said(tmp_path: Path) -> None:
    """The error names the path and says how to find runs."""
    with pytest.raises(RunNotFound, match=r"no such file: .*nope\.replay") as caught:
        bundle.load_file(tmp_path / "nope.replay")
    assert "spanreplay ls" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"just text", MAGIC], ids=["empty", "text", "no_frames"])
def test_file_without_calls_is_said(content: bytes, tmp_path: Path) -> None:
    """An empty file, or one of another kind, is a SourceError that names it."""
    (tmp_path / "x.replay").write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.replay"):
        bundle.load_file(tmp_path / "x.replay")


def test_directory_is_no_recording(tmp_path: Path) -> None:
    """A directory in place of a file gives an error, not a traceback."""
    with pytest.raises(ForeignFile, match="cannot read"):
        bundle.load_file(tmp_path)


def test_spool_file_of_several_runs_takes_the_one_it_is_named_after(tmp_path: Path) -> None:
    """Runs are never mixed: the file's name decides, and without one the error lists them."""
    payloads = [*whole_run(RUN, 2), *whole_run(OTHER_RUN, 1)]
    write_spool_file(tmp_path / f"{OTHER_RUN}.1-a.spool", payloads)
    write_spool_file(tmp_path / "mixed.spool", payloads)
    assert len(bundle.load_file(tmp_path / f"{OTHER_RUN}.1-a.spool").calls) == 1
    with pytest.raises(AmbiguousRun, match=f"{RUN}, {OTHER_RUN}"):
        bundle.load_file(tmp_path / "mixed.spool")


def test_crashed_run_loads_up_to_its_frontier(tmp_path: Path) -> None:
    """A raw spool file with a torn tail and no root record loads, and is incomplete."""
    torn = MAGIC + frame_header(call(seq=1)) + call(seq=1) + frame_header(call(seq=2)) + call(seq=2)[:9]
    (tmp_path / f"{RUN}.1-a.spool").write_bytes(torn)
    recording = bundle.load_file(tmp_path / f"{RUN}.1-a.spool")
    assert [c.seq for c in recording.calls] == [1]
    assert not recording.completeness().is_complete


# ── runs inside ─────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def with_start(tmp_path: Path) -> Path:
    """A file of one run that has another one, which it needs."""
    path = tmp_path / "incident.replay"
    inner = bundle.pack(OTHER_RUN, whole_run(OTHER_RUN))
    path.write_bytes(bundle.add_runs(bundle.pack(RUN, whole_run()), {OTHER_RUN: inner}))
    return path


def test_s62_runs_inside_a_file_are_found_by_their_id(with_start: Path, tmp_path: Path) -> None:
    """The file is that of its own run; the others are there for its replay."""
    assert bundle.load_file(with_start).run_id == RUN
    assert bundle.unpack(with_start.read_bytes())[0] == RUN
    inner = bundle.load_inner(with_start, OTHER_RUN)
    assert inner is not None
    assert inner.run_id == OTHER_RUN
    assert bundle.load_inner(with_start, RUN) is None
    assert bundle.load_inner(with_start, "../../etc/passwd") is None
    (tmp_path / "lines.replay").write_bytes(b"{}\n")
    assert bundle.load_inner(tmp_path / "lines.replay", OTHER_RUN) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.update({f"runs/{OTHER_RUN}.replay": b"PK\x03\x04 no zip"}),
        lambda entries: entries.update({f"runs/{OTHER_RUN}.replay": bundle.pack(RUN, whole_run())}),
        lambda entries: entries.update({f"runs/{OTHER_RUN}.replay": b"text"}),
    ],
    ids=["cut", "another-run", "no-zip"],
)
def test_s62_a_damaged_run_inside_a_file_is_refused(
    with_start: Path, change: Callable[[dict[str, bytes]], None]
) -> None:
    """With one line that names the file and the run; nothing is loaded."""
    with_start.write_bytes(_rezip(with_start.read_bytes(), change))
    with pytest.raises((DamagedRecording, ForeignFile), match=f"incident.replay:runs/{OTHER_RUN}.replay"):
        bundle.load_inner(with_start, OTHER_RUN)


def test_s62_a_huge_run_inside_a_file_costs_no_memory(with_start: Path) -> None:
    """A member that would unpack to gigabytes is refused before it is."""
    with_start.write_bytes(
        _rezip(
            with_start.read_bytes(),
            lambda entries: entries.update({f"runs/{OTHER_RUN}.replay": bytes(100 * 1024 * 1024)}),
        )
    )
    tracemalloc.start()
    try:
        with pytest.raises(ForeignFile, match="would unpack"):
            bundle.load_inner(with_start, OTHER_RUN)
        assert tracemalloc.get_traced_memory()[1] < 50 * 1024 * 1024
    finally:
        tracemalloc.stop()
