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


def migrate(engine: Engine, migrations: list[Migration] | None = None) -> list[Migration]:
    """Bring the store to this version's schema; return the migrations applied by this call.

    Idempotent, also after a crash in the middle: a migration is recorded after its last statement.
    Raises: NewerSchema; StoreError if an applied migration has changed since.
    """
    known = read_migrations() if migrations is None else migrations
    with engine.client(is_server_level=True) as client:
        # Atomic: renames and drops do not wait for readers, and chDB's default database engine is not Atomic.
        client.command(f"CREATE DATABASE IF NOT EXISTS {engine.address.database} ENGINE = Atomic")
    applied_now: list[Migration] = []
    with engine.client() as client:
        client.command(_TABLE)
        applied = _read_applied(client)
        _check(known, applied)
        for migration in known:
            if migration.number in applied:
                continue
            for statement in migration.statements:
                client.command(statement)
            client.command(
                _RECORD,
                parameters={
                    "number": migration.number,
                    "name": migration.name,
                    "sha256": migration.sha256,
                },
            )
            applied_now.append(migration)
    return applied_now


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
