"""The schema's numbered migrations: `schema/NNNN_name.sql`, applied once, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.client import Client

from spanreplay.model.errors import NewerSchema, StoreError
from spanreplay.model.how_to_install import install_command
from spanreplay_collector.store.cluster import find_cluster, for_cluster, on_cluster
from spanreplay_collector.store.engine import SCHEMA_DIR, Engine

__all__ = ["Migration", "check_schema", "list_pending", "migrate", "read_migrations"]

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_STATEMENT_END: Final = re.compile(r";[ \t]*(?:\n|$)")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS migrations (
    number UInt16, name String, sha256 String, applied_at DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree ORDER BY number"""
_APPLIED: Final = "SELECT number, name, sha256 FROM migrations FINAL ORDER BY number"
_RECORD: Final = """
INSERT INTO migrations (number, name, sha256, applied_at)
SELECT {number:UInt16}, {name:String}, {sha256:String}, now64(3)"""


@dataclass(frozen=True)
class Migration:
    """One file of the schema; every statement in it can be run again."""

    number: int
    name: str
    sha256: str
    statements: tuple[str, ...]


def read_migrations(directory: Path = SCHEMA_DIR) -> list[Migration]:
    """All migrations that this version of the code knows, in order."""
    found: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise StoreError(f"{path.name!r} is not named like a migration (0001_name.sql)")
        text = path.read_text(encoding="utf-8")
        bare = _COMMENT.sub("", text)
        statements = tuple(s for part in _STATEMENT_END.split(bare) if (s := part.strip()))
        found.append(Migration(int(match[1]), match[2], sha256(text.encode()).hexdigest(), statements))
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise StoreError(f"the migrations in {str(directory)!r} are not numbered 1, 2, 3 …")
    return found


def migrate(engine: Engine, migrations: list[Migration] | None = None, *, cluster: str = "") -> list[Migration]:
    """Bring the store to this version's schema; return the migrations applied by this call.

    Idempotent, also after a crash in the middle: a migration is recorded after its last statement. On a cluster every
    statement is repeated, so that replicas added since get their tables. A store that is a cluster stays one.
    Raises: NewerSchema; StoreError if an applied migration has changed since, or the tables are of another cluster.
    """
    known = read_migrations() if migrations is None else migrations
    database = engine.address.database
    with engine.client(is_server_level=True) as client:
        cluster = _check_cluster(client, database, cluster)
        # Atomic: renames and drops do not wait for readers, and chDB's default database engine is not Atomic.
        client.command(f"CREATE DATABASE IF NOT EXISTS {database}{on_cluster(cluster)} ENGINE = Atomic")
    applied_now: list[Migration] = []
    with engine.client() as client:
        for statement in _forms(_TABLE.strip(), cluster, database):
            client.command(statement)
        applied = _read_applied(client)
        _check(known, applied)
        for migration in known:
            if migration.number in applied and not cluster:
                continue
            for each in migration.statements:
                for statement in _forms(each, cluster, database):
                    client.command(statement)
            if migration.number not in applied:
                _record(client, migration)
                applied_now.append(migration)
    return applied_now


def _forms(statement: str, cluster: str, database: str) -> list[str]:
    return for_cluster(statement, cluster, database) if cluster else [statement]


def _record(client: Client, migration: Migration) -> None:
    client.command(
        _RECORD,
        parameters={"number": migration.number, "name": migration.name, "sha256": migration.sha256},
    )


def _check_cluster(client: Client, database: str, wanted: str) -> str:
    """Return the cluster of the tables that exist or will be made; empty: one server. Raises: StoreError."""
    found = find_cluster(client, database)
    if not wanted or wanted == found:
        return found
    exists = client.query(
        "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'spans'",
        parameters={"database": database},
    ).result_rows[0][0]
    if exists:
        where = f"on the cluster {found!r}" if found else "on one server"
        raise StoreError(
            f"the tables of {database!r} are {where}, not on the cluster {wanted!r}",
            hint="use another database, and bring the runs over with `spanreplay export` and `spanreplay import`",
        )
    return wanted


def list_pending(engine: Engine) -> list[Migration]:
    """List the migrations that are not applied yet. Raises: StoreError if none was ever applied."""
    with engine.client() as client:
        applied = _read_applied(client)
    return [migration for migration in read_migrations() if migration.number not in applied]


def check_schema(engine: Engine) -> None:
    """Refuse a store migrated by a newer release; a store without a schema passes. Raises: NewerSchema, StoreError."""
    with engine.client(is_server_level=True) as client:
        exists = client.query(
            "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'migrations'",
            parameters={"database": engine.address.database},
        ).result_rows[0][0]
    if exists:
        with engine.client() as client:
            _check(read_migrations(), _read_applied(client))


def _read_applied(client: Client) -> dict[int, tuple[str, str]]:
    return {int(number): (str(name), str(digest)) for number, name, digest in client.query(_APPLIED).result_rows}


def _check(known: list[Migration], applied: dict[int, tuple[str, str]]) -> None:
    newest = max(applied, default=0)
    if newest > len(known):
        raise NewerSchema(
            f"the store has schema {newest} ({applied[newest][0]!r}), this spanreplay knows {len(known)}",
            hint=f"upgrade spanreplay: {install_command()}",
        )
    for migration in known:
        if migration.number in applied and applied[migration.number][1] != migration.sha256:
            raise StoreError(
                f"migration {migration.number:04d}_{migration.name} is not what this store was made with",
                hint="install the release that made the store; an applied migration is never edited",
            )
