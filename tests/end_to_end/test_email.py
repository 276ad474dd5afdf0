"""An e-mail address in a prompt is never stored in clear text, and the run still replays."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.collector import SwitchStore, run_collector
from support.provider import Provider
from support.replaying import Workplace
from support.sql import ask
from support.up_server import start_up

FIRST, SECOND = "jane.doe@acme-refunds.com", "john.roe@acme-refunds.com"
AGENT = f"""
from groq import Groq
client = Groq()
for address in ("{FIRST}", "{SECOND}", "{FIRST}"):
    prompt = f"Refund the order of {{address}} and write to her."
    answer = client.chat.completions.create(model="gpt-x", messages=[{{"role": "user", "content": prompt}}])
    print(len(answer.choices))
"""
TABLES = ("spans", "blobs", "boundaries", "runs", "spans_apart")


def spanreplay(workplace: Workplace, *arguments: str, **environ: str) -> str:
    """Run a command in the agent's directory and return its standard error."""
    done = workplace.run(*arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


def holding(folder: Path, wanted: str) -> list[str]:
    """The files below a folder that contain a text."""
    return [p.name for p in folder.rglob("*") if p.is_file() and wanted.encode() in p.read_bytes()]


def count_rows(data_dir: Path, wanted: str) -> int:
    """The number of rows in all tables with a column that contains a text."""
    counted = (
        ask(data_dir, f"SELECT count() AS rows FROM {table} WHERE position(toString(tuple(*)), '{wanted}') > 0")
        for table in TABLES
    )
    return sum(int(rows[0]["rows"]) for rows in counted)


@dataclass(frozen=True)
class Recorded:
    """A run, a copy of its spool, and what it wrote on standard error."""

    workplace: Workplace
    agent: Path
    spool: Path
    stderr: str
    stdout: str


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Recorded with default configuration; the provider is stopped afterwards."""
    with Provider() as provider:
        workplace = Workplace(tmp_path_factory.mktemp("agent"), provider.environ())
        agent = workplace.write("agent.py", AGENT)
        done = workplace.record(agent)
        # The provider got what the agent sent
        assert [FIRST in str(body) for _, body in provider.requests] == [True, False, True]
    # Shipping deletes a recording: each test ships a copy
    spool = shutil.copytree(workplace.path / ".spanreplay", tmp_path_factory.mktemp("kept") / "spool")
    return Recorded(workplace, agent, spool, done.stderr, done.stdout)


def test_s43_email_of_a_prompt_is_in_no_spool_log_or_export(recorded: Recorded, tmp_path: Path) -> None:
    """It is in neither spool, standard error, `.replay` file nor JSON lines; its token is."""
    run_id = recorded.workplace.recording().run_id
    spanreplay(recorded.workplace, "export", run_id, "--output", str(tmp_path / "run.replay"))
    spanreplay(recorded.workplace, "export", run_id, "--jsonl", "--output", str(tmp_path / "run.jsonl"))
    with zipfile.ZipFile(tmp_path / "run.replay") as bundle:
        bundle.extractall(tmp_path / "unpacked")
    for address in (FIRST, SECOND):
        assert holding(recorded.spool, address) == []
        assert holding(tmp_path, address) == []
        assert address not in recorded.stderr
    assert holding(tmp_path / "unpacked", "rdx-") != []
    assert holding(tmp_path, "Refund the order of rdx-") != []


def test_s43_email_of_a_prompt_is_not_in_the_collectors_log(recorded: Recorded, tmp_path: Path) -> None:
    """While its store is down, a collector logs what it has acknowledged, without the address."""
    store = SwitchStore()
    store.is_down = True
    spool = shutil.copytree(recorded.spool, tmp_path / "spool")
    with run_collector(tmp_path / "collector", store) as collector:
        spanreplay(recorded.workplace, "ship", "--endpoint", collector.http, SPANREPLAY_DIR=str(spool))
        assert holding(tmp_path / "collector", "Refund the order of rdx-") != []
        assert holding(tmp_path / "collector", FIRST) + holding(tmp_path / "collector", SECOND) == []


@pytest.mark.slow
def test_s43_email_of_a_prompt_is_not_in_the_store(recorded: Recorded, tmp_path: Path) -> None:
    """It is in no table column nor in the server's log; its token is in one column."""
    spool = shutil.copytree(recorded.spool, tmp_path / "spool")
    (tmp_path / "up").mkdir()
    with start_up(tmp_path / "up") as server:
        spanreplay(recorded.workplace, "ship", "--endpoint", server.otlp_endpoint, SPANREPLAY_DIR=str(spool))
        assert server.stop() == 0, server.log
    found = {wanted: count_rows(server.data_dir, wanted) for wanted in ("rdx-", FIRST, SECOND)}
    assert found["rdx-"] > 0
    assert (found[FIRST], found[SECOND]) == (0, 0)
    assert FIRST not in server.log
    assert holding(server.data_dir, FIRST) + holding(server.data_dir, SECOND) == []


def test_s43_run_with_an_email_replays_and_other_addresses_have_other_keys(recorded: Recorded) -> None:
    """With the provider gone the replay is identical; equal addresses have equal keys, different ones different."""
    replayed = recorded.workplace.replay(recorded.agent)
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    keys = [call.key for call in recorded.workplace.recording().calls]
    assert keys[0] == keys[2] != keys[1]
