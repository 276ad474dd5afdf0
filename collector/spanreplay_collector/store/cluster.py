"""The tables of a ClickHouse cluster, made from the statements for one server.

(1) Each table becomes `NAME_local`, replicated within its shard, and a Distributed table `NAME` in front of it.
(2) All rows of a run are on one shard: the sharding key is a hash of tenant and run.
(3) A table that removes runs is altered as `NAME_local ON CLUSTER`; a Distributed table cannot be.
(4) The list of applied migrations is on every server, whichever one answers.

The store itself says that it is a cluster: its table `spans` is Distributed. Nothing but `migrate` needs the name.
"""

from __future__ import annotations

import re
from typing import Final

from clickhouse_connect.driver.client import Client

from spanreplay.model.errors import ConfigError, StoreError

__all__ = [
    "CLUSTER_SETTINGS",
    "alter",
    "apply_cluster_settings",
    "checked_cluster",
    "find_cluster",
    "for_cluster",
    "on_cluster",
]

CLUSTER_SETTINGS: Final = {
    # An insert returns when the shards have the rows, so that a segment of the log may go.
    "distributed_foreground_insert": 1,
    # Subqueries see the runs of all shards; ClickHouse refuses them otherwise.
    "distributed_product_mode": "global",
    # INSERT … SELECT writes each run's row where the sharding key says, not where the row was read.
    "parallel_distributed_insert_select": 0,
}
"""Settings of every query over HTTP; without Distributed tables they change nothing."""
SHARDING_KEY: Final = "cityHash64(tenant, run_id)"
SHARD_PATH: Final = "/clickhouse/tables/{shard}/{database}/{table}"
EVERYWHERE_PATH: Final = "/clickhouse/tables/all/{database}/{table}"
KEEP_TOKENS: Final = "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
"""How long a repeated load of a log segment is recognised, as on one server: the last 10,000 inserts."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TABLE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_VIEW: Final = re.compile(r"CREATE VIEW IF NOT EXISTS (\w+) AS\s")
_MATERIALIZED: Final = re.compile(r"CREATE MATERIALIZED VIEW IF NOT EXISTS (\w+) TO (\w+) AS\s")
_ENGINE: Final = re.compile(r"\) ENGINE = (\w*MergeTree)(?:\((\w+)\))?(?=\s)")
_TOKENS: Final = re.compile(r"non_replicated_deduplication_window = \d+")
_SOURCE: Final = re.compile(r"\bFROM (\w+) AS b\b")
_DISTRIBUTED: Final = re.compile(r"Distributed\('((?:[^'\\]|\\.)*)'")


def checked_cluster(name: str) -> str:
    """The name of a cluster, as in `remote_servers`. Raises: ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not the name of a cluster", hint="SELECT DISTINCT cluster FROM system.clusters lists them"
        )
    return name


def on_cluster(cluster: str) -> str:
    """` ON CLUSTER …`, or nothing on one server."""
    return f" ON CLUSTER '{cluster}'" if cluster else ""


def alter(cluster: str, table: str) -> str:
    """The beginning of an ALTER of a table's rows, on every shard of a cluster."""
    return f"ALTER TABLE {table}_local{on_cluster(cluster)}" if cluster else f"ALTER TABLE {table}"


def apply_cluster_settings(client: Client) -> None:
    """Set what Distributed tables need, as far as this server knows it and lets this user set it.

    An older server, and a user who may only read, refuse every query with such a setting; one server needs none.
    """
    for name, value in CLUSTER_SETTINGS.items():
        known = client.server_settings.get(name)
        if known is not None and not known.readonly:
            client.set_client_setting(name, value)


def find_cluster(client: Client, database: str) -> str:
    """The cluster over which a store's tables are distributed; empty: one server, or no tables yet."""
    found = client.query(
        "SELECT engine_full FROM system.tables "
        "WHERE database = {database:String} AND name = 'spans' AND engine = 'Distributed'",
        parameters={"database": database},
    ).result_rows
    named = _DISTRIBUTED.match(str(found[0][0])) if found else None
    return named[1] if named else ""


def for_cluster(statement: str, cluster: str, database: str) -> list[str]:
    """Return the statements that do on every server of a cluster what one does on a single server; pure.

    Raises: StoreError if the statement has no such form, e.g. an ALTER of a table that nothing here knows.
    """
    on = on_cluster(cluster)
    if made := _TABLE.match(statement):
        return _make_table(statement, made[1], cluster, database)
    if made := _MATERIALIZED.match(statement):
        start = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {made[1]}{on} TO {made[2]}_local AS\n"
        return [start + _SOURCE.sub(r"FROM \1_local AS b", statement[made.end() :])]
    if made := _VIEW.match(statement):
        body = statement[made.end() :].replace("\nLEFT JOIN (", "\nGLOBAL LEFT JOIN (")
        return [f"CREATE VIEW IF NOT EXISTS {made[1]}{on} AS\n{body}"]
    raise StoreError(f"a migration has no form for a cluster: {statement.partition(chr(10))[0]!r}")


def _make_table(statement: str, name: str, cluster: str, database: str) -> list[str]:
    is_everywhere = name == "migrations"  # (4)
    own = name if is_everywhere else f"{name}_local"
    path, replica = (EVERYWHERE_PATH, "{shard}-{replica}") if is_everywhere else (SHARD_PATH, "{replica}")

    def replicate(engine: re.Match[str]) -> str:
        version = f", {engine[2]}" if engine[2] else ""
        return f") ENGINE = Replicated{engine[1]}('{path}', '{replica}'{version})"

    on = on_cluster(cluster)
    made = statement.replace(f"EXISTS {name} (", f"EXISTS {own}{on} (", 1)
    made, engines = _ENGINE.subn(replicate, made + "\n")
    if engines != 1:
        raise StoreError(f"the table {name!r} has no engine that a cluster can replicate")
    made = _TOKENS.sub(KEEP_TOKENS, made).rstrip()
    if is_everywhere:
        return [made]
    front = f"ENGINE = Distributed('{cluster}', '{database}', '{own}', {SHARDING_KEY})"  # (1), (2)
    return [made, f"CREATE TABLE IF NOT EXISTS {name}{on} AS {own} {front}"]
