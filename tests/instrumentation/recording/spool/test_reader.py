"""The catalog of a spool directory: finds, loads, exports and imports runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spanreplay.model.errors import AmbiguousRun, DamagedRecording, NewerSchema, RunNotFound, SourceError
from spanreplay.recording import bundle
from spanreplay.recording.catalog import Catalog, Imported, RunQuery
from spanreplay.recording.spool import SpoolCatalog, SpoolWriter
from spanreplay.recording.spool.directory import ack_path, iter_spool_files
from spanreplay.recording.spool.frames import write_spool_file
from support.spool_tools import OTHER_RUN, RUN, call, request, root, whole_run


def _record(directory: Path, run_id: str, payloads: list[bytes]) -> Path:
    writer = SpoolWriter(directory, run_id)
    assert all(writer.append(p) for p in payloads)
    path = writer.path
    assert path is not None
    writer.close()
    return path


def _run_id(n: int) -> str:
    return f"0192f0{n:06x}70008000000000000000"


def test_catalog_is_one() -> None:
    """SpoolCatalog implements the protocol."""
    catalog: Catalog = SpoolCatalog(Path("/nonexistent/.spanreplay"))
    assert catalog.search(RunQuery()) == []
    with pytest.raises(RunNotFound):
        catalog.load(RUN)
    catalog.close()


def test_run_of_several_writers_is_one_run(tmp_path: Path) -> None:
    """Calls recorded by two processes load as one recording."""
    _record(tmp_path, RUN, [call(seq=1), call(seq=3), root(calls=3)])
    _record(tmp_path, RUN, [call(seq=2)])
    recording = SpoolCatalog(tmp_path).load(RUN)
    assert [c.seq for c in recording.calls] == [1, 2, 3]
    assert recording.completeness().is_complete


def test_file_of_several_runs_is_several_runs(tmp_path: Path) -> None:
    """Spans are filed under the run that they name, whatever the file is called."""
    _record(tmp_path, RUN, [*whole_run(RUN, 2), *whole_run(OTHER_RUN, 1)])
    catalog = SpoolCatalog(tmp_path)
    assert [(s.root.run_id, s.calls) for s in catalog.search(RunQuery())] == [(OTHER_RUN, 1), (RUN, 2)]
    assert len(catalog.load(OTHER_RUN).calls) == 1
    run_id, payloads = bundle.unpack(catalog.export(OTHER_RUN))
    assert (run_id, payloads) == (OTHER_RUN, whole_run(OTHER_RUN, 1))


def test_batch_of_several_runs_is_split_on_export(tmp_path: Path) -> None:
    """A payload with spans of two runs is rebuilt for each, losing none."""
    _record(tmp_path, RUN, [b"".join([*whole_run(RUN, 2), *whole_run(OTHER_RUN, 1)])])
    catalog = SpoolCatalog(tmp_path)
    for run_id, calls in ((RUN, 2), (OTHER_RUN, 1)):
        read = bundle.read_bundle(catalog.export(run_id))
        assert (read.run_id, read.spans) == (run_id, calls + 1)


def test_foreign_spans_travel_with_their_run(tmp_path: Path) -> None:
    """Spans of other instrumentors are exported; their run is named by their resource or by their file."""
    named = request({"llm.model": "m"}, span_id=77, resource={"spanreplay.run_id": RUN})
    nameless = request({"http.method": "GET"}, span_id=78)
    _record(tmp_path, RUN, [*whole_run(), named, nameless])
    assert bundle.unpack(SpoolCatalog(tmp_path).export(RUN))[1] == [*whole_run(), named, nameless]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (RunQuery(), [2, 1, 0]),
        (RunQuery(limit=2), [2, 1]),
        (RunQuery(limit=0), []),
        (RunQuery(app="bot1"), [1]),
        (RunQuery(user_id="ann"), [2, 0]),
        (RunQuery(user_id="ann", limit=1), [2]),
        (RunQuery(tool="place_order"), [2, 1, 0]),
        (RunQuery(tool="delete_accounts"), []),
        (RunQuery(since_ns=1_500), [2, 1]),
        (RunQuery(until_ns=1_500), [0]),
        (RunQuery(run_id_prefix=_run_id(1)[:12]), [1]),
        (RunQuery(status="incomplete"), []),
    ],
    ids=lambda value: "",
)
def test_search_answers_the_query(query: RunQuery, found: list[int], tmp_path: Path) -> None:
    """The result is filtered, limited, and newest first."""
    for n in range(3):
        user_id = "bob" if n == 1 else "ann"
        payloads = whole_run(_run_id(n), app=f"bot{n}", user_id=user_id, start_ns=1_000 * (n + 1))
        _record(tmp_path, _run_id(n), payloads)
    assert [s.root.run_id for s in SpoolCatalog(tmp_path).search(query)] == [_run_id(n) for n in found]


def test_search_of_hundreds_reads_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second search reads no file again, except for a run that grew."""
    for n in range(200):
        _record(tmp_path, _run_id(n), whole_run(_run_id(n), calls=1))
    catalog = SpoolCatalog(tmp_path)
    assert len(catalog.search(RunQuery(limit=1000))) == 200
    opened: list[Path] = []
    real_open = Path.open

    def counting_open(self: Path, *args: object, **kwargs: object) -> object:
        opened.append(self)
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]  # passed through as it came

    monkeypatch.setattr(Path, "open", counting_open)
    assert len(catalog.search(RunQuery(limit=1000))) == 200
    assert opened == []
    _record(tmp_path, _run_id(7), [call(_run_id(7), seq=9)])
    grown = catalog.search(RunQuery(run_id_prefix=_run_id(7)))
    assert [s.calls for s in grown] == [2]
    assert {p.name[:32] for p in opened} == {_run_id(7)}


def test_run_without_root_is_found_by_its_time(tmp_path: Path) -> None:
    """A run that was killed before its root record has the time that is encoded in its id."""
    _record(tmp_path, RUN, [call(seq=1)])
    (summary,) = SpoolCatalog(tmp_path).search(RunQuery(since_ns=1_000_000))
    assert summary.root.start_ns == 0x0192F0000000 * 1_000_000
    assert summary.status == "incomplete"


@pytest.mark.parametrize("given", [RUN, RUN[:6], RUN[:12], f" {RUN.upper()} ", "0192f000-0000-7000-8000-0000000000aa"])
def test_prefix_names_its_run(given: str, tmp_path: Path) -> None:
    """A whole id, a prefix of six characters, upper case and the dashed form all find the run."""
    _record(tmp_path, RUN, whole_run())
    assert SpoolCatalog(tmp_path).resolve(given) == RUN


def test_ambiguous_prefix_lists_the_runs(tmp_path: Path) -> None:
    """The error lists the candidates."""
    for run_id in (RUN, OTHER_RUN):
        _record(tmp_path, run_id, whole_run(run_id))
    with pytest.raises(AmbiguousRun, match=f"names 2 runs: {RUN}, {OTHER_RUN}"):
        SpoolCatalog(tmp_path).load("0192f0")


@pytest.mark.parametrize(
    ("given", "says"), [("0192f", "too short"), ("ffffffff", "no run 'ffffffff' in "), ("../../etc", "no run")]
)
def test_unknown_run_says_how_to_list(given: str, says: str, tmp_path: Path) -> None:
    """The error says what was looked for, where, and how to list the runs."""
    _record(tmp_path, RUN, whole_run())
    with pytest.raises(RunNotFound, match=says) as caught:
        SpoolCatalog(tmp_path).load(given)
    assert "spanreplay ls" in caught.value.hint


def test_damaged_file_is_listed_once_and_refused_on_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ls continues after a damaged file with one warning; loading that run names file and byte."""
    path = _record(tmp_path, RUN, whole_run())
    _record(tmp_path, OTHER_RUN, whole_run(OTHER_RUN))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    catalog = SpoolCatalog(tmp_path)
    caplog.set_level(logging.WARNING)
    listed = {s.root.run_id: s.status for s in catalog.search(RunQuery())}
    assert listed == {RUN: "incomplete", OTHER_RUN: "ok"}
    catalog.search(RunQuery())
    assert len(caplog.records) == 1
    for refused in (catalog.load, catalog.export):
        with pytest.raises(DamagedRecording, match=f"{path.name} is damaged at byte"):
            refused(RUN)
    assert catalog.load(OTHER_RUN).completeness().is_complete


def test_file_damaged_at_its_start_is_damaged_not_missing(tmp_path: Path) -> None:
    """A run whose first record is unreadable is not reported as unknown."""
    path = _record(tmp_path, RUN, whole_run())
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DamagedRecording):
        SpoolCatalog(tmp_path).load(RUN)


def test_newer_record_is_refused_and_not_listed(tmp_path: Path) -> None:
    """A record of a later schema is refused with a request to upgrade, and is not listed."""
    _record(tmp_path, RUN, [call(schema="2"), root(calls=1)])
    catalog = SpoolCatalog(tmp_path)
    assert catalog.search(RunQuery()) == []
    with pytest.raises(NewerSchema):
        catalog.load(RUN)


def test_s62_export_and_import_carry_a_run_over(tmp_path: Path) -> None:
    """A run exported here and imported there is the same recording and the same bundle."""
    _record(tmp_path / "here", RUN, whole_run(calls=2))
    here, there = SpoolCatalog(tmp_path / "here"), SpoolCatalog(tmp_path / "there")
    data = here.export(RUN)
    assert there.import_bundle(data) == Imported(RUN, 3)
    assert there.load(RUN) == here.load(RUN)
    assert there.export(RUN) == data


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    """The second import of a bundle, even into its original directory, adds no call."""
    _record(tmp_path, RUN, whole_run(calls=2))
    catalog = SpoolCatalog(tmp_path)
    data = catalog.export(RUN)
    for _ in range(2):
        assert catalog.import_bundle(data) == Imported(RUN, 3)
        assert len(list(iter_spool_files(tmp_path))) == 2
        assert catalog.export(RUN) == data
        assert len(catalog.load(RUN).calls) == 2


def test_imported_run_stays_here_unless_asked(tmp_path: Path) -> None:
    """Only an import with to_ship marks its file for the shipper."""
    catalog = SpoolCatalog(tmp_path)
    data = bundle.pack(RUN, whole_run())
    catalog.import_bundle(data)
    (path,) = iter_spool_files(tmp_path)
    assert not ack_path(path).exists()
    catalog.import_bundle(data, to_ship=True)
    assert ack_path(path).read_text() == "0"


@pytest.mark.parametrize(
    "data",
    [b"junk", bundle.pack(RUN, []), bundle.pack(OTHER_RUN, whole_run(RUN)), bundle.pack(RUN, [call(schema="9")])],
    ids=["junk", "empty", "another_run", "newer"],
)
def test_bad_bundle_leaves_no_trace(data: bytes, tmp_path: Path) -> None:
    """A bundle that could not be loaded is not imported."""
    with pytest.raises(SourceError):
        SpoolCatalog(tmp_path / "data").import_bundle(data)
    assert not (tmp_path / "data").exists()


def test_import_into_an_unwritable_place_is_said(tmp_path: Path) -> None:
    """The error names the directory and the variable that chooses it."""
    (tmp_path / "data").write_text("a file")
    with pytest.raises(SourceError, match="cannot write to") as caught:
        SpoolCatalog(tmp_path / "data").import_bundle(bundle.pack(RUN, whole_run()))
    assert "SPANREPLAY_DIR" in caught.value.hint


def test_foreign_file_in_the_spool_does_not_hide_the_rest(tmp_path: Path) -> None:
    """Files of other kinds are reported once and skipped."""
    _record(tmp_path, RUN, whole_run())
    (tmp_path / "spool" / "notes.spool").write_text("dear diary, today")
    (tmp_path / "spool" / "empty.spool").write_bytes(b"")
    write_spool_file(tmp_path / "spool" / "named-freely.spool", whole_run(OTHER_RUN))
    found = SpoolCatalog(tmp_path).search(RunQuery())
    assert {s.root.run_id for s in found} == {RUN, OTHER_RUN}
