"""`spanreplay ls` finds the run that a support ticket is about."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from spanreplay.cli.runs.run_table import short_ids
from support.recordings import make_incident, write_spool

Invoke = Callable[..., Result]
MINUTE_NS = 60 * 1_000_000_000


def _started(at_ns: int, text: str = "%Y-%m-%dT%H:%M") -> str:
    return time.strftime(text, time.localtime(at_ns / 1e9))


def _ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return [row["run_id"] for row in rows]


def test_s19_ls_finds_run_by_user_time_and_tool(spanreplay: Invoke, data_dir: Path) -> None:
    """User, minute and tool select exactly the run of the ticket, out of many."""
    ticket_ns = time.time_ns() // MINUTE_NS * MINUTE_NS - 26 * 60 * MINUTE_NS
    for i in range(20):
        write_spool(data_dir, make_incident(i, start_ns=ticket_ns + (i - 10) * 47 * MINUTE_NS, user_id=f"u-{i % 3}"))
    wanted = make_incident(999, start_ns=ticket_ns, user_id="u-77")
    write_spool(data_dir, wanted)
    around = _started(ticket_ns)
    found = _ids(spanreplay("ls", "--user", "u-77", "--around", around, "--tool", "place_order", "--json"))
    assert found == [wanted.run_id]
    assert _ids(spanreplay("ls", "--user", "u-77", "--around", around, "--tool", "delete_accounts", "--json")) == []
    far = _started(ticket_ns + 31 * MINUTE_NS)
    assert _ids(spanreplay("ls", "--user", "u-77", "--around", far, "--json")) == []
    assert _ids(spanreplay("ls", "--user", "u-77", "--around", far, "--within", "2h", "--json")) == [wanted.run_id]


def test_s19_ls_around_a_clock_time_means_the_latest_one(spanreplay: Invoke, data_dir: Path) -> None:
    """A bare clock time means its latest occurrence."""
    at_ns = time.time_ns() - 90 * MINUTE_NS
    recording = make_incident(1, start_ns=at_ns)
    write_spool(data_dir, recording)
    assert _ids(spanreplay("ls", "--around", _started(at_ns, "%H:%M"), "--json")) == [recording.run_id]


def test_u5_ls_json_is_an_array_newest_first(spanreplay: Invoke, data_dir: Path) -> None:
    """The output is an array of objects with run_id, newest first, and nothing else on standard output."""
    now_ns = time.time_ns()
    runs = [make_incident(i, start_ns=now_ns - i * MINUTE_NS) for i in range(4)]
    for recording in runs:
        write_spool(data_dir, recording)
    result = spanreplay("ls", "--json")
    assert _ids(result) == [r.run_id for r in runs]
    assert result.stderr == ""
    row = json.loads(result.stdout)[0]
    assert row["status"] == "ok"
    assert row["tools"] == ["place_order"]
    assert (row["calls"], row["llm_calls"], row["tokens_in"], row["tokens_out"]) == (4, 2, 1712, 54)
    assert _ids(spanreplay("ls", "--limit", "2", "--json")) == [r.run_id for r in runs[:2]]


def test_ls_text_has_a_line_a_run_and_no_colour_in_a_pipe(spanreplay: Invoke, data_dir: Path) -> None:
    """In a pipe every run is one uncut line with its whole id, without colour."""
    recording = make_incident(3)
    write_spool(data_dir, recording)
    result = spanreplay("ls")
    head, line = result.stdout.splitlines()
    assert head.split() == ["RUN", "STARTED", "APP", "STATUS", "CALLS", "TOKENS", "TIME", "USER", "TOOLS"]
    assert line.startswith(recording.run_id)
    assert line.endswith("place_order")
    assert "\x1b" not in result.stdout


def test_ls_without_runs_says_so_and_prints_no_data(spanreplay: Invoke) -> None:
    """That nothing was found goes to standard error; --json prints an empty array."""
    result = spanreplay("ls")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no matching runs here" in result.stderr
    assert spanreplay("ls", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--around", "nine"),
        ("--since", "25:61"),
        ("--within", "soon"),
        ("--limit", "0"),
        ("--status", "fine"),
        ("--around", "09:04", "--since", "1h"),
    ],
    ids=" ".join,
)
def test_ls_wrong_usage_ends_with_2(spanreplay: Invoke, arguments: tuple[str, ...]) -> None:
    """An option that cannot be understood ends with status 2 and one line."""
    result = spanreplay("ls", *arguments)
    assert result.exit_code == 2
    assert "Error:" in result.stderr


def test_ls_finds_a_redacted_user_by_the_real_name(spanreplay: Invoke, data_dir: Path) -> None:
    """A run is found by the user's real id even though the recording holds only its token."""
    from spanreplay.redact import Redactor, load_or_create_key

    data_dir.mkdir(parents=True)
    known = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    token = Redactor(*load_or_create_key(data_dir / "redact.key")).run().text(known)
    assert token != known
    recording = make_incident(1, user_id=token)
    write_spool(data_dir, recording)
    assert _ids(spanreplay("ls", "--user", known, "--json")) == [recording.run_id]


def test_ls_short_ids_stay_unique() -> None:
    """Each displayed prefix names one run and has at least 13 characters."""
    ids = ["0192f3a4b5c6700080000000000000aa", "0192f3a4b5c6700080000000000000ab", "0192f3a4b5c87000" + "0" * 16]
    shown = short_ids(ids)
    assert shown[ids[2]] == "0192f3a4b5c87"
    assert shown[ids[0]] == ids[0]
    assert len(set(shown.values())) == 3
