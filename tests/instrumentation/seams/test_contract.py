"""The contract of the seam table: promises of every row, for every version of its library that is installed here.

A row's case is tests/agents/seams/NAME.py; `support.seam_contract` says what it holds and checks it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Final

import pytest

from spanreplay.seams.table import SEAMS, Seam
from support.agents import ENVIRONMENTS, ROOT, has_distribution
from support.sampling import IS_WHOLE
from support.seam_contract import CASES, PROMISES, TIMEOUT_S

WITHOUT_CASE: Final = {
    "multiprocessing": "it starts processes, whose calls others record (test_processes.py)",
    "aiosqlite": "its statements are those of sqlite3 (test_databases.py)",
    "asyncpg": "it needs a server (test_asyncpg.py)",
    "psycopg": "it needs a server (test_databases.py)",
    "aiokafka": "it needs a broker (end_to_end/test_kafka_in_python.py)",
    "kafka-python": "it needs a broker (end_to_end/test_kafka_in_python.py)",
    "confluent-kafka": "it needs a broker (end_to_end/test_kafka.py)",
    "kombu": "it needs a broker (end_to_end/test_kombu.py)",
    "nats-py": "it needs a server (end_to_end/test_nats.py)",
    "pika": "it needs a broker (end_to_end/test_amqp.py)",
    "aio-pika": "it needs a broker (end_to_end/test_amqp.py)",
    "redis": "it needs a server (end_to_end/test_redis.py)",
    "psycopg2": "it needs a server (test_databases.py)",
    "pymongo": "it needs a server (end_to_end/test_mongodb.py)",
    "dbapi": "it needs a driver and a server (databases/test_dbapi.py)",
    "duckdb": "its statements run again in a replay (test_duckdb.py)",
    "own-servers": "it records nothing (test_own_servers.py)",
    "threads": "it records no calls (end_to_end/test_meetings.py)",
    "pool-waits": "it records no calls (end_to_end/test_process_meetings.py)",
    "returns": "it records no calls (end_to_end/test_returns.py)",
    "gevent": "it records no calls (end_to_end/test_gevent.py)",
    "blockbuster": "it records no calls (end_to_end/test_units_background.py)",
    "waited-signals": "it waits for a signal to the whole process (end_to_end/test_received_signals.py)",
    "stdin": "it needs a process with an input of its own (test_stdin.py)",
    "leaks": "it records nothing, and notes what others do not record (test_leaks.py)",
    "native-clients": "it records nothing, and denies what native clients ask (end_to_end/test_native_clients.py)",
    "uvloop-steps": "it records no calls (test_uvloop.py)",
    "passed-queues": "it records no calls (end_to_end/test_passed.py)",
    "langgraph-queues": "it records no calls (end_to_end/test_passed.py)",
    "langgraph-effects": "it records no calls (end_to_end/test_passed.py)",
    "uvloop-queues": "it records no calls (end_to_end/test_passed.py)",
    "wandb": "it records no calls (end_to_end/test_wandb.py)",
    "mcp-transports": "it only keeps servers from being started (tests/agents/mcp_agent.py)",
}
"""Rows that cannot be used alone, and where they are tested."""


def _has(environment: str, seam: Seam) -> bool:
    if seam.distribution == "python":  # all packages of a row may be missing here
        return environment == "current" and any(find_spec(name.partition(".")[0]) for name in seam.triggers)
    return has_distribution(ENVIRONMENTS[environment], seam.distribution)


def _version(environment: str, seam: Seam) -> str:
    folders = [str(each) for each in ENVIRONMENTS[environment].parent.parent.glob("lib/python*/site-packages")]
    found = (
        each
        for name in (seam.distribution, f"{seam.distribution}-binary")
        for each in distributions(name=name, path=folders)
    )
    return next((each.version for each in found), "")


def _places() -> list[tuple[str, str]]:
    """Each row with every environment that has its library; outside `make matrix`, one for each version of it."""
    found = [(seam, place) for seam in SEAMS for place in ENVIRONMENTS if _has(place, seam)]
    first = {(seam.name, _version(place, seam)): (seam.name, place) for seam, place in reversed(found)}
    return [(seam.name, place) for seam, place in found if IS_WHOLE or (seam.name, place) in first.values()]


PLACES: Final = _places()


@functools.cache
def check(place: str) -> dict[str, dict[str, str]]:
    """Results of every row whose library is in an environment, checked in one process there."""
    names = [name for name, where in PLACES if where == place]
    done = subprocess.run(
        [str(ENVIRONMENTS[place]), "-m", "support.seam_contract", *names],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), PLACES, ids=[f"{name}-{place}" for name, place in PLACES])
def test_s50_every_seam_keeps_its_promises(name: str, place: str) -> None:
    """A seam's targets exist, calls are recorded and replayed, exceptions pass through, everything is restored."""
    found = check(place)[name]
    assert {promise: wrong for promise, wrong in found.items() if wrong} == {}
    wanted = {"fits", "restores"} if name in WITHOUT_CASE else set(PROMISES) - {"exception", "abandoned"}
    assert wanted <= set(found)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_s50_every_seam_has_a_case(seam: Seam) -> None:
    """Every row has a case for its contract, or states why it has none."""
    assert (CASES / f"{seam.name}.py").exists() != (seam.name in WITHOUT_CASE)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_s50_every_library_is_in_an_environment(seam: Seam) -> None:
    """The library of each row is in one of the test environments, which are built where possible."""
    if seam.name in {name for name, _ in PLACES}:
        return
    if seam.distribution == "python":
        pytest.skip(f"no package that this row patches is installed: {', '.join(seam.triggers)}")
    missing = [place for place, python in ENVIRONMENTS.items() if not python.exists()]
    assert missing, f"no file of tests/agents/requirements names {seam.distribution}"
    pytest.skip(f"{seam.distribution}: not made here: {', '.join(missing)}")


def test_s50_no_case_is_left_over() -> None:
    """Every case belongs to a row."""
    assert {path.stem for path in CASES.glob("*.py")} <= {seam.name for seam in SEAMS}
