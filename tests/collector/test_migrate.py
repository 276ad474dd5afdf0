"""Migrations are numbered, applied once, and refused if the store is newer than the code or differs from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import spanreplay_collector
from spanreplay.model.errors import NewerSchema, StoreError
from spanreplay.recording.catalog import RunQuery
from spanreplay_collector.cli import migrate as migrate_command
from spanreplay_collector.store.engine import SCHEMA_DIR, Engine, parse_address
from spanreplay_collector.store.migrate import Migration, migrate, read_migrations
from spanreplay_collector.store.store import Store
from support.runs import make_payload, make_recording
from support.stores import fresh_chdb_url


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    """An engine whose database does not exist yet."""
    opened = Engine(parse_address(store_url))
    yield opened
    opened.close()


def _applied(engine: Engine) -> list[int]:
    with engine.client() as client:
        return [int(row[0]) for row in client.query("SELECT number FROM migrations FINAL ORDER BY 1").result_rows]


def _next(*statements: str) -> Migration:
    number = len(read_migrations()) + 1
    return Migration(number, "added", "0" * 64, statements)


def test_migrate_twice_applies_once(engine: Engine) -> None:
    """The first migration makes the tables, the second has nothing to do."""
    known = read_migrations()
    assert migrate(engine) == known
    assert migrate(engine) == []
    assert _applied(engine) == [m.number for m in known]


def test_migrate_records_the_hash_of_each_file(engine: Engine) -> None:
    """The store knows the exact text of each migration that made it."""
    migrate(engine)
    with engine.client() as client:
        rows = client.query("SELECT number, name, sha256 FROM migrations ORDER BY number").result_rows
    assert [tuple(row) for row in rows] == [(m.number, m.name, m.sha256) for m in read_migrations()]


def test_migrate_goes_on_after_a_crash_in_the_middle(engine: Engine) -> None:
    """A migration that stopped half way is repeated from its start and then recorded."""
    known = read_migrations()
    added = _next("CREATE TABLE IF NOT EXISTS extra (n UInt8) ENGINE = Memory", "SELECT throwIf(1)")
    with pytest.raises(StoreError):
        migrate(engine, [*known, added])
    assert _applied(engine) == [m.number for m in known]
    mended = replace(added, statements=added.statements[:1])
    assert migrate(engine, [*known, mended]) == [mended]
    assert _applied(engine) == [m.number for m in (*known, mended)]


def test_migrate_a_newer_store_is_refused(engine: Engine, store_url: str) -> None:
    """A store that newer code has migrated is neither migrated nor opened."""
    newer = _next("SELECT 1")
    migrate(engine, [*read_migrations(), newer])
    with pytest.raises(NewerSchema, match=rf"schema {newer.number} \('added'\)") as caught:
        migrate(engine)
    assert "upgrade" in caught.value.hint
    with pytest.raises(NewerSchema):
        Store.open(store_url)


def test_migrate_an_edited_migration_is_refused(engine: Engine) -> None:
    """A migration that was applied and then changed in the code is an error, not silently skipped."""
    first, *rest = read_migrations()
    migrate(engine, [replace(first, sha256="f" * 64), *rest])
    with pytest.raises(StoreError, match="0001_tables"):
        migrate(engine)


def test_store_without_tables_says_what_to_do(store_url: str) -> None:
    """A store that was never migrated opens, and every use of it names the command to run."""
    with Store.open(store_url) as store:
        for use in (
            lambda: store.load("t", [make_payload(make_recording(calls=1))], "t"),
            lambda: store.search("t", RunQuery()),
            lambda: store.read_run("t", "0" * 32),
        ):
            with pytest.raises(StoreError, match="no tables") as caught:
                use()
            assert "spanreplay migrate" in caught.value.hint
        store.ping()


def test_migrations_are_numbered_without_holes(tmp_path: Path) -> None:
    """A gap, a duplicate number or a foreign name in the schema's directory is refused."""
    (tmp_path / "0001_one.sql").write_text("SELECT 1;\n-- why; not\nSELECT 2;")
    (only,) = read_migrations(tmp_path)
    assert only.statements == ("SELECT 1", "SELECT 2")
    (tmp_path / "0003_three.sql").write_text("SELECT 3;")
    with pytest.raises(StoreError, match="numbered"):
        read_migrations(tmp_path)
    (tmp_path / "0003_three.sql").rename(tmp_path / "three.sql")
    with pytest.raises(StoreError, match=r"three\.sql"):
        read_migrations(tmp_path)


def test_migrations_are_part_of_the_package() -> None:
    """The schema is read from inside the package, so an installed package has it too."""
    assert SCHEMA_DIR.parent == Path(spanreplay_collector.__file__).parent
    assert (SCHEMA_DIR / "chdb.xml").exists()


def test_migrate_command_lists_what_it_applied() -> None:
    """`spanreplay migrate` prints the applied migrations on stdout, and prints nothing the second time."""
    url = fresh_chdb_url()
    names = [f"{m.number:04d}_{m.name}" for m in read_migrations()]
    first = CliRunner().invoke(migrate_command, ["--store", url])
    assert (first.exit_code, first.stdout.split()) == (0, names)
    second = CliRunner().invoke(migrate_command, [], env={"SPANREPLAY_STORE": url})
    assert (second.exit_code, second.stdout) == (0, "")
    assert "already up to date" in second.stderr


def test_migrate_command_explains_a_bad_url() -> None:
    """An invalid URL is answered with the two valid forms and exit status 1."""
    result = CliRunner().invoke(migrate_command, ["--store", "mysql://u:geheim@h/d"])
    assert result.exit_code == 1
    assert "chdb:///absolute/directory" in result.stderr
    assert "geheim" not in result.output
