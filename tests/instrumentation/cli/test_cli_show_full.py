"""`spanreplay show --full` as git's text conversion, so that a change of a recording is readable."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from click.testing import Result

from spanreplay.model.call import Recording
from support.recordings import make_incident, write_spool
from support.replaying import BIN, TIMEOUT_S

Invoke = Callable[..., Result]


def _git(folder: Path, *words: str) -> str:
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull}
    who = ("-c", "user.name=Dev", "-c", "user.email=dev@example.test")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_show_full_is_the_same_for_the_same_behaviour(spanreplay: Invoke, data_dir: Path) -> None:
    """Requests and answers are printed whole; another id, time or duration changes nothing."""
    first, second = make_incident(), make_incident(7, start_ns=1_790_000_900_000_000_000)
    second = Recording(second.root, tuple(replace(call, end_ns=call.end_ns + 9_000_000) for call in second.calls))
    for run in (first, second):
        write_spool(data_dir, run)
    one, other = (spanreplay("show", run.run_id, "--full").stdout for run in (first, second))
    assert one == other
    for said in ("call 2  tool:place_order  ok", '"notional": 190000', "sell 1,000 worth", "Order filled: $190,000"):
        assert said in one
    assert "call 1 " not in spanreplay("show", first.run_id, "--full", "--kind", "tool").stdout


def test_w6_a_diff_of_a_recording_is_text(spanreplay: Invoke, data_dir: Path, tmp_path: Path) -> None:
    """As docs/pytest.md promises, git shows the one line that changed instead of "binary files differ"."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("*.replay diff=spanreplay\n", encoding="utf-8")
    _git(folder, "config", "diff.spanreplay.textconv", "spanreplay show --full --no-pager")
    runs = make_incident(), make_incident(1)
    order = replace(runs[1].calls[1], request=json.dumps({"args": [], "kwargs": {"notional": 1900}}))
    runs = runs[0], Recording(runs[1].root, (runs[1].calls[0], order, *runs[1].calls[2:]))
    for run in runs:
        write_spool(data_dir, run)
        assert spanreplay("export", run.run_id, "-o", str(folder / "incident.replay")).exit_code == 0
        _git(folder, "add", "-A")
        _git(folder, "commit", "-q", "-m", "a recording")
    shown = _git(folder, "diff", "HEAD~1")
    changed = [line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ['-    "notional": 190000', '+    "notional": 1900']
