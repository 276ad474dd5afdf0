"""The demo's machinery deletes only its own files and reports what went wrong."""

from __future__ import annotations

import io
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from spanreplay_service.demo.demo import MARKER, Story, prepare_folder
from spanreplay_service.demo.incident import SCRIPT
from spanreplay_service.demo.model import Load, read_amount
from spanreplay_service.demo.server import DemoServer
from spanreplay_service.demo.stage import DemoFailed, Service, clean_environ, run_command
from spanreplay_service.demo.telling import REQUEST
from support.agents import run_agent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared working folder."""
    directory = tmp_path / "demo"
    prepare_folder(directory)
    return directory


@pytest.fixture
def bad_server() -> Iterator[DemoServer]:
    """A model server whose second decision is the bad one, after the first has been made."""
    seed = next(
        seed
        for seed in range(1000)
        if read_amount([(load := Load(seed)).draw_batch_size(), load.draw_batch_size()][1]).is_shares
    )
    server = DemoServer(seed=seed)
    server.load.draw_batch_size()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


def test_demo_folder_is_emptied_only_if_it_is_ours(folder: Path, tmp_path: Path) -> None:
    """An earlier demo's folder is replaced; any other folder is refused and left as it is."""
    (folder / "old.txt").write_text("from the last time")
    prepare_folder(folder)
    assert not (folder / "old.txt").exists()
    assert (folder / MARKER).exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(DemoFailed, match="not empty and not a demo's"):
        prepare_folder(mine)
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_demo_ledger_has_a_position_for_every_customer(folder: Path) -> None:
    """Ten customers hold enough to sell the wrong amount."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        rows = db.execute("SELECT user_id, quantity FROM positions ORDER BY user_id").fetchall()
    assert rows == [(f"u-{n}", 5000.0) for n in range(201, 211)]


def test_s51_guard_refuses_the_order(folder: Path, bad_server: DemoServer) -> None:
    """With the guard in place, the model's same bad answer sells nothing."""
    output = io.StringIO()
    story = Story(folder, Console(file=output), is_kept=False, has_phoenix=False)
    story.first.fix_agent()
    assert output.getvalue().count("+        ") == 2
    environ = {"OPENAI_BASE_URL": bad_server.url, "OPENAI_API_KEY": "none"}
    done = run_agent(folder / SCRIPT, "--user", "u-201", REQUEST, environ=environ, cwd=folder)
    assert done.stdout.endswith("order refused: $189,996.00 is more than the $1,200.00 asked for\n"), done.stderr
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    (folder / SCRIPT).write_text("print('something else')")
    with pytest.raises(DemoFailed, match="was it edited"):
        story.first.fix_agent()


def test_demo_says_why_a_service_ended(tmp_path: Path) -> None:
    """A service that exits at once is reported with its status and the end of its log."""
    argv = [sys.executable, "-c", "print('no room'); raise SystemExit(9)"]
    service = Service("the store", argv, cwd=tmp_path, environ=clean_environ(), log=tmp_path / "store.log")
    with pytest.raises(DemoFailed, match=r"(?s)the store ended with status 9.*no room"):
        service.wait_until(lambda: False, timeout_s=60)
    service.stop()


def test_demo_stops_a_service_and_says_when_it_is_late(tmp_path: Path) -> None:
    """A service that never becomes ready is reported, and stop ends it."""
    argv = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    service = Service("the store", argv, cwd=tmp_path, environ=clean_environ(), log=tmp_path / "store.log")
    with pytest.raises(DemoFailed, match="was not ready after 0 s"):
        service.wait_until(lambda: False, timeout_s=0)
    service.stop()
    service.stop()


def test_demo_reports_a_missing_command(tmp_path: Path) -> None:
    """A command that is not installed gives an explanation, not a traceback."""
    with pytest.raises(DemoFailed, match="'no-such-command' is not installed"):
        run_command(["no-such-command"], cwd=tmp_path, environ={"PATH": str(tmp_path)})


def test_demo_environment_has_no_settings_of_the_user() -> None:
    """A user's own OTel, provider and recorder settings do not change the story."""
    cleaned = clean_environ(
        {"OTEL_TRACES_EXPORTER": "none", "SPANREPLAY_MODE": "off", "OPENAI_API_KEY": "sk", "HOME": "/h", "PATH": "/b"}
    )
    assert cleaned == {"HOME": "/h", "PATH": f"{Path(sys.executable).parent}:/b"}
