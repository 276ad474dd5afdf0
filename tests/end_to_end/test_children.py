"""Python programs started by the agent record themselves as separate runs that name the run which started them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanreplay.recording.catalog import PARENT, RunQuery, RunSummary, find_newest
from spanreplay.recording.spool import SpoolCatalog
from spanreplay.runtime.process.parent_run import read_parent
from support.agents import AGENTS
from support.provider import Provider
from support.replaying import Workplace


def _runs(workplace: Workplace) -> list[RunSummary]:
    return SpoolCatalog(workplace.path / ".spanreplay").search(RunQuery())


@pytest.mark.slow
def test_n1_child_process_names_the_run_and_call_that_started_it(provider: Provider, workplace: Workplace) -> None:
    """A child's run is marked; `latest` is the agent's run, whose replay starts no child and prints the same output."""
    workplace.environ.update(provider.environ())
    recorded = workplace.record(AGENTS / "spawning_agent.py")
    provider.stop()
    parent, *children = sorted(_runs(workplace), key=lambda run: PARENT in run.root.env)
    assert parent.root.app == "spawning_agent"
    assert [child.root.app for child in children] == ["-c", "-c"]
    started = [child.root.env[PARENT] for child in children]
    spawns = [call.seq for call in workplace.recordings()[0].calls if call.kind == "tool"]
    assert sorted((each["run_id"], each["seq"]) for each in started) == [(parent.root.run_id, seq) for seq in spawns]
    newest = find_newest(SpoolCatalog(workplace.path / ".spanreplay"), RunQuery())
    assert newest is not None
    assert newest.root.run_id == parent.root.run_id
    replayed = workplace.replay(AGENTS / "spawning_agent.py", source="latest")
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", recorded.stdout), replayed.stderr
    assert len(_runs(workplace)) == 1 + len(children)  # recordings of replays aren't counted


@pytest.mark.slow
def test_n1_baggage_of_the_users_own_is_handed_on(workplace: Workplace) -> None:
    """BAGGAGE keeps its members beside ours; the started program sees no other new variable."""
    agent = workplace.write("agent.py", "import subprocess; print(subprocess.check_output(['env'], text=True))\n")
    recorded = workplace.record(agent, BAGGAGE="tenant=acme")
    lines = [line for line in recorded.stdout.splitlines() if line.startswith("BAGGAGE=")]
    assert len(lines) == 1
    members = dict(pair.split("=") for pair in lines[0].removeprefix("BAGGAGE=").split(","))
    run_id = workplace.recording().run_id
    assert members == {"tenant": "acme", "spanreplay.run_id": run_id, "spanreplay.seq": "1"}


@pytest.mark.parametrize(
    "text", ["", "a=b", "spanreplay.run_id=", "spanreplay.run_id=xyz,spanreplay.seq=1", f"spanreplay.run_id={'a' * 32}"]
)
def test_n1_baggage_that_is_not_ours_names_no_parent(text: str) -> None:
    """Baggage without a complete entry of ours is ignored."""
    assert read_parent({"BAGGAGE": text}) == {}


def test_n1_baggage_of_ours_names_the_parent() -> None:
    """The parent is found among other members."""
    text = f"x=1, spanreplay.run_id={'a' * 32} ,spanreplay.seq=7"
    assert read_parent({"BAGGAGE": text}) == {PARENT: {"run_id": "a" * 32, "seq": 7}}


FORKING = """
import os, secrets, sys
import spanreplay

@spanreplay.boundary("tool", effect="read")
def tell(name):
    return {"name": name}

NAME = secrets.token_hex(32)
tell("before")
child = os.fork()
tell(NAME)
if child:
    os.waitpid(child, 0)
    print(NAME)
"""


def test_r9_what_was_drawn_before_a_fork_is_a_secret_behind_it(tmp_path: Path) -> None:
    """A value that `secrets` returned before a fork appears in clear text in neither process's run."""
    workplace = Workplace(tmp_path)
    done = workplace.record(workplace.write("agent.py", FORKING))
    (name,) = done.stdout.split()
    runs = workplace.recordings()
    assert (len(name), len(runs)) == (64, 2)
    assert all(name not in call.request + call.response for run in runs for call in run.calls)
    assert all(any(call.name == "tell" and "rdx-" in call.request for call in run.calls) for run in runs)
