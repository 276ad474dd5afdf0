"""kill -9 while loading: acknowledged batches are stored once, and loading all of them again changes nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spanreplay.model.errors import StoreError
from spanreplay_collector.store.store import Store
from support.store_loader import check_reload, load_batch
from support.stores import SERVER_URL_VARIABLE, Front, make_directory

BATCHES = 12
TESTS = Path(__file__).parents[1]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "support.store_loader", *arguments]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("seed", range(5))
def test_c1_store_killed_while_loading_keeps_each_batch_once(seed: int) -> None:
    """A process that owns an embedded store is killed at a random point of its loads."""
    url = f"chdb://{make_directory()}"
    delay_s = random.Random(seed).uniform(0.01, 1.2)
    killed = _run("load", url, str(BATCHES), f"{delay_s:.4f}")
    lines = killed.stdout.split()
    assert lines[:1] == ["ready"], killed.stderr
    acked = len(lines) - 1
    assert killed.returncode == -9 or acked == BATCHES, killed.stderr
    checked = _run("check", url, str(BATCHES), str(acked))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(SERVER_URL_VARIABLE in os.environ, reason="a real server is not ours to kill")
@pytest.mark.parametrize("seed", range(2))
def test_c1_server_killed_while_loading_keeps_each_batch_once(seed: int) -> None:
    """The server of a store is killed while a client loads; the client sees StoreError and loads again."""
    directory = make_directory()
    server = Front(directory)
    target = random.Random(seed).randrange(1, BATCHES - 2)
    acked = 0
    is_reached = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal acked
        try:
            for number in range(BATCHES):
                load_batch(store, number)
                acked = number + 1
                if acked >= target:
                    is_reached.set()
        except StoreError as exc:
            errors.append(exc)

    with Store.open(server.url("spanreplay")) as store:
        store.migrate()
        thread = threading.Thread(target=work)
        thread.start()
        assert is_reached.wait(timeout=60)
        server.kill()
        thread.join(timeout=600)
        assert not thread.is_alive()
    assert errors or acked == BATCHES
    again = Front(directory)
    try:
        with Store.open(again.url("spanreplay")) as store:
            check_reload(store, BATCHES, acked)
    finally:
        again.kill()
