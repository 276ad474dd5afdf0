"""Connections: every failure has one clear line, and no line contains a password."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from clickhouse_connect.driver import exceptions as driver

from spanreplay.model.errors import ConfigError, SpanreplayError, StoreError, StoreLocked
from spanreplay_collector.store.engine import CLIENTS_MAX, Engine, parse_address
from spanreplay_collector.store.store import Store
from support.stores import PASSWORD, Front, chdb_directory, fresh_database, make_directory

_OWNER = """
import sys
from spanreplay_collector.store.store import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def _line(error: SpanreplayError) -> str:
    """All of an error that a user or a log could see."""
    return f"{error} {error.hint} {error!r}"


def test_open_directory_of_another_process_is_locked() -> None:
    """A chDB directory that another process has open is refused, naming process and remedy, and is usable later."""
    url = f"chdb://{make_directory()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    script = "import sys\nfrom spanreplay_collector.store.store import Store\nStore.open(sys.argv[1])"
    second = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=600)
    owner.communicate("")
    assert second.returncode == 1
    last = second.stderr.strip().splitlines()[-1]
    assert last.startswith("spanreplay.model.errors.StoreLocked: another process has the store")
    third = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=600)
    assert third.returncode == 0, third.stderr


def test_open_two_directories_in_one_process_is_refused() -> None:
    """chDB allows one directory per process; a second one is refused with a workaround."""
    with (
        Store.open(f"chdb://{chdb_directory()}?database={fresh_database()}"),
        pytest.raises(StoreError, match="another embedded store") as caught,
    ):
        Store.open(f"chdb://{make_directory()}")
    assert not isinstance(caught.value, StoreLocked)
    assert "?database=" in caught.value.hint


def test_open_a_file_is_no_store(tmp_path: Path) -> None:
    """A path that is a file is refused as unusable."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(f"chdb://{tmp_path / 'file' / 'store'}")


def test_open_makes_a_private_directory_of_that_name() -> None:
    """A new store's directory is readable by its owner only, whatever characters its name has."""
    url = f"chdb://{make_directory() / 'new 50%20 #1 ü'}"
    script = "import sys\nfrom spanreplay_collector.store.store import Store\nStore.open(sys.argv[1]).migrate()"
    subprocess.run([sys.executable, "-c", script, url], check=True, timeout=600)
    assert Path(url.removeprefix("chdb://")).stat().st_mode & 0o777 == 0o700


def test_open_wrong_password_is_refused_without_it(front: Front) -> None:
    """A refused password is reported as such, and printed nowhere."""
    url = front.url("default").replace("default:", "default:geheim", 1)
    with pytest.raises(StoreError, match="refused user 'default'") as caught:
        Store.open(url)
    shown = _line(caught.value) + "".join(traceback.format_exception(caught.value))
    assert "geheim" not in shown
    assert PASSWORD not in shown


def test_a_server_that_goes_away_is_an_error_and_may_come_back() -> None:
    """While a server is down every call raises StoreError, which callers may retry, and no other error."""
    directory = make_directory()
    server = Front(directory)
    url = server.url("default")
    store = Store.open(url)
    server.kill()
    with pytest.raises(StoreError, match="no ClickHouse server answers") as caught:
        store.ping()
    assert PASSWORD not in _line(caught.value)
    with pytest.raises(StoreError, match="no ClickHouse server answers"):
        Store.open(url)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "store",
        "chdb://relative/path",
        "chdb:relative",
        "mysql://u:geheim@h/d",
        "http://",
        "http://u:geheim@h:port/d",
        "http://u:geheim@h/data-base",
        "chdb:///tmp/x?database=a b",
        "chdb:///tmp/x?y",
    ],
)
def test_parse_address_refuses_what_is_no_store(url: str) -> None:
    """A URL that cannot be a store is refused with the valid forms, and is never repeated."""
    with pytest.raises(ConfigError) as caught:
        parse_address(url)
    assert "geheim" not in _line(caught.value)
    assert caught.value.hint


def test_parse_address_shows_no_password() -> None:
    """The address shows host and database in text and in debuggers, but no credentials."""
    address = parse_address("https://ann:ge%40heim@ch.example/runs")
    assert (address.user, address.password, address.port) == ("ann", "ge@heim", 8443)
    assert str(address) == "https://ch.example:8443/runs"
    assert "heim" not in repr(address)
    assert parse_address("http://h").database == "spanreplay"


@pytest.mark.parametrize(
    "error",
    [
        value
        for value in vars(driver).values()
        if isinstance(value, type)
        and issubclass(value, driver.ClickHouseError)
        and value is not driver.StreamClosedError
    ],
)
def test_engine_maps_every_error_of_the_driver(error: type[Exception]) -> None:
    """Every error of clickhouse-connect is mapped to StoreError, without text that may quote rows."""
    engine = Engine(parse_address("http://127.0.0.1:1/x"))
    failure = error("Code: 6. secret row")
    assert isinstance(failure, driver.ClickHouseError)
    explained = engine._explained(failure)
    assert isinstance(explained, StoreError)
    assert "secret" not in _line(explained)


def test_engine_a_failed_query_leaves_nothing_for_the_next(store: Store) -> None:
    """Queries after one that failed in the middle of its output give their own results."""
    for _ in range(3):
        with pytest.raises(StoreError), store._engine.client() as client:
            client.command("SELECT throwIf(1)")
        with store._engine.client() as client:
            assert [tuple(r) for r in client.query("SELECT 1, 'one'").result_rows] == [(1, "one")]


def test_engine_runs_a_bounded_number_of_queries(store: Store) -> None:
    """Each failed query returns its client to the pool, so the limit of clients is never used up."""
    for _ in range(CLIENTS_MAX + 1):
        with pytest.raises(StoreError), store._engine.client() as client:
            client.command("no SQL")
    store.ping()
    assert len(store._engine._free) <= CLIENTS_MAX
