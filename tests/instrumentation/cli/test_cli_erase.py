"""`spanreplay erase` and `spanreplay pin`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from spanreplay.model.call import Recording
from spanreplay_service.server import ServerSettings
from support.memory_store import MemoryStore, fill
from support.recordings import make_incident, write_spool
from support.runs import make_run_id
from support.service import serve

Invoke = Callable[..., Result]
DAY_NS = 86_400 * 10**9


def _found(spanreplay: Invoke) -> set[str]:
    listed = json.loads(spanreplay("ls", "--replays", "--json").stdout)
    return {run["run_id"] for run in listed}


def _write(data_dir: Path, number: int, *, days_ago: float = 0, **root: object) -> Recording:
    made = make_incident(number, start_ns=time.time_ns() - int(days_ago * DAY_NS), user_id=f"u-{number}")
    made = replace(made, root=replace(made.root, **root))  # type: ignore[arg-type]
    write_spool(data_dir, made)
    return made


def test_c9_a_users_runs_are_erased_with_what_belongs_to_them(spanreplay: Invoke, data_dir: Path) -> None:
    """Replays and the runs of processes that they started go, too; everybody else's stay, byte for byte."""
    mine, other = _write(data_dir, 1), _write(data_dir, 2)
    _write(data_dir, 3, replay_of=mine.run_id, user_id="")
    _write(data_dir, 4, env={"parent": {"run_id": mine.run_id, "seq": 1}}, user_id="")
    (data_dir / "spool" / "refused").mkdir()
    refused = data_dir / "spool" / "refused" / f"{mine.run_id}.9-9.spool"
    refused.write_bytes(b"whatever a collector refused")
    kept = {path: path.read_bytes() for path in (data_dir / "spool").glob(f"{other.run_id}*")}
    trial = spanreplay("erase", "--user", "u-1", "--dry-run", "--json")
    assert json.loads(trial.stdout)["erased"] == []
    assert len(json.loads(trial.stdout)["found"]) == 3
    assert len(_found(spanreplay)) == 4
    asked = spanreplay("erase", "--user", "u-1")
    assert asked.exit_code == 2
    assert "3 runs" in asked.output
    done = spanreplay("erase", "--user", "u-1", "--yes")
    assert done.exit_code == 0, done.output
    assert "erased 3 runs" in done.output
    assert _found(spanreplay) == {other.run_id}
    assert {path: path.read_bytes() for path in (data_dir / "spool").iterdir() if path.is_file()} == kept
    assert not refused.exists()
    assert "nothing to erase" in spanreplay("erase", "--user", "u-1", "--yes").output


def test_c9_a_run_is_erased_by_its_id(spanreplay: Invoke, data_dir: Path) -> None:
    """By a prefix or `latest`; one that is not there is an error, and nothing is removed."""
    first, second = _write(data_dir, 1, days_ago=1), _write(data_dir, 2)
    missing = spanreplay("erase", first.run_id, "0123456789", "--yes")
    assert missing.exit_code == 1
    assert _found(spanreplay) == {first.run_id, second.run_id}
    assert spanreplay("erase", "latest", "--yes").exit_code == 0
    assert _found(spanreplay) == {first.run_id}


def test_c9_a_file_of_several_runs_keeps_the_others(spanreplay: Invoke, data_dir: Path) -> None:
    """Only the run's own records are taken out of it, and it is delivered anew."""
    first, second = _write(data_dir, 1), _write(data_dir, 2)
    shown = spanreplay("show", second.run_id, "--json").stdout
    files = [next((data_dir / "spool").glob(f"{run.run_id}*")) for run in (first, second)]
    magic = b"SPRSPOOL1\n"
    files[0].write_bytes(files[0].read_bytes() + files[1].read_bytes().removeprefix(magic))
    files[1].unlink()
    ack = files[0].with_name(files[0].name + ".ack")
    ack.write_text("10")
    assert spanreplay("erase", first.run_id, "--yes").exit_code == 0
    assert _found(spanreplay) == {second.run_id}
    assert spanreplay("show", second.run_id, "--json").stdout == shown
    assert first.root.user_id.encode() not in files[0].read_bytes()
    assert ack.read_text() == "0"


def test_s45_what_is_old_goes_and_failures_stay(spanreplay: Invoke, data_dir: Path) -> None:
    """With what they need: a failed request keeps the run of its process."""
    process = _write(data_dir, 1, days_ago=40)
    failed = _write(data_dir, 2, days_ago=35, outcome="error", env={"unit": {"process": process.run_id}})
    _write(data_dir, 3, days_ago=35)
    young = _write(data_dir, 4)
    assert spanreplay("erase", "--before", "30d", "--yes").exit_code == 0
    assert _found(spanreplay) == {process.run_id, failed.run_id, young.run_id}
    assert spanreplay("erase", "--before", "30d", "--failures", "--yes").exit_code == 0
    assert _found(spanreplay) == {young.run_id}


def test_c9_a_run_that_is_being_written_is_not_erased(spanreplay: Invoke, data_dir: Path) -> None:
    """Its process would go on writing into a file that nobody finds."""
    run = _write(data_dir, 1)
    path = next((data_dir / "spool").glob(f"{run.run_id}*"))
    import fcntl

    with path.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused = spanreplay("erase", run.run_id, "--yes")
    assert refused.exit_code == 1
    assert "still being written" in refused.output
    assert _found(spanreplay) == {run.run_id}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "name what to erase"),
        (("--user", ""), "need a name"),
        (("--failures", "latest"), "goes with --before"),
        (("--before", "soon"), "not a time"),
    ],
)
def test_u5_unclear_requests_are_refused(spanreplay: Invoke, arguments: tuple[str, ...], part: str) -> None:
    """An empty user would be everybody."""
    refused = spanreplay("erase", *arguments, "--yes")
    assert refused.exit_code == 2
    assert part in refused.output


def test_u5_a_pin_needs_a_service(spanreplay: Invoke, data_dir: Path) -> None:
    """Here nothing is removed by age."""
    refused = spanreplay("pin", _write(data_dir, 1).run_id)
    assert refused.exit_code == 1
    assert "only a service removes runs by age" in refused.output


def test_c9_the_commands_work_at_a_service(spanreplay: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a run's prefix; its age is the service's affair."""
    store = MemoryStore()
    fill(store, 1, 2)
    with serve(store, ServerSettings(port=0)) as server:
        monkeypatch.setenv("SPANREPLAY_ENDPOINT", server.address)
        pinned = spanreplay("pin", make_run_id(1), "--reason", "ticket 904", "--json")
        assert json.loads(pinned.stdout) == {"pinned": [make_run_id(1)]}
        assert "keep-days" in spanreplay("erase", "--before", "30d", "--yes").output
        done = spanreplay("erase", make_run_id(1), "--yes", "--json")
        assert json.loads(done.stdout)["erased"] == [make_run_id(1)]
        assert _found(spanreplay) == {make_run_id(2)}
