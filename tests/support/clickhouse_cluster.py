"""What a cluster of one shard does with the store's statements, on chDB's engine, for tests.

chDB serves no other server: it can't run a Distributed query, a DDL queue or a replicated table. So each statement
is checked as it was sent and then run in the form of one server:

- what has ON CLUSTER must parse as it is; replicated engines become plain ones, a mutation with a subquery is refused
  as by a replicated table, an ALTER of a Distributed table as by that;
- a Distributed table is made for real in the database NAME_far, and in NAME as an alias of its local table;
- each SELECT is planned over the real Distributed tables too: the engine refuses what a cluster would refuse.
"""

from __future__ import annotations

import re
from typing import Any, Final

CLUSTER: Final = "flight"
CONFIG: Final = f"""<clickhouse><remote_servers><{CLUSTER}><shard><replica>
<host>127.0.0.1</host><port>9</port></replica></shard><shard><replica>
<host>127.0.0.1</host><port>9</port></replica></shard></{CLUSTER}></remote_servers></clickhouse>"""
DENIED: Final = 288
_ON: Final = f" ON CLUSTER '{CLUSTER}'"
_REPLICATED: Final = re.compile(r"ENGINE = Replicated(\w+)\('[^']*', '[^']*'(?:, (\w+))?\)")
_DISTRIBUTED: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) AS (\w+) ENGINE = Distributed")
_CODE: Final = re.compile(r"Code: (\d+)\.")


class Refused(RuntimeError):
    """What a cluster's engine answers instead."""


def as_one_shard(handle: Any, sql: str, database: str, parameters: dict[str, str]) -> str:
    """Check a statement as a cluster would, and return it for one server. Raises: Refused, RuntimeError."""
    has_cluster = _ON in sql
    if has_cluster:
        handle.query(f"EXPLAIN AST {sql}")
    plain = _REPLICATED.sub(lambda found: f"ENGINE = {found[1]}({found[2] or ''})", sql.replace(_ON, ""))
    plain = re.sub(r"replicated_deduplication_window\w* = \d+,? ?", "", plain)
    plain = re.sub(r",?\s*(?:SETTINGS\s*)?$", "", plain)
    head = sql.lstrip()[:12].upper()
    if head.startswith("ALTER TABLE"):
        _check_alter(sql, is_on_cluster=has_cluster)
    elif head.startswith("CREATE DATABA") or sql.startswith("CREATE DATABASE"):
        handle.query(plain.replace(" ENGINE", "_far ENGINE"))
    elif (made := _DISTRIBUTED.match(plain)) is not None:
        _twin(handle, plain.replace(f"AS {made[2]}", f"AS {database}.{made[2]}"), database)
        return f"CREATE TABLE IF NOT EXISTS {made[1]} ENGINE = Alias('{made[2]}')"
    elif sql.startswith("CREATE VIEW"):
        _twin(handle, plain, database)
    elif head.startswith(("SELECT", "WITH", "INSERT")) and "SELECT" in sql and database and "system." not in sql:
        _plan(handle, sql, database, parameters)
    return plain


def look_at_twin(sql: str, parameters: dict[str, str]) -> None:
    """Let a question about Distributed tables find the real ones."""
    if "system.tables" in sql and "'Distributed'" in sql and "database" in parameters:
        parameters["database"] += "_far"


def _twin(handle: Any, statement: str, database: str) -> None:
    handle.query(f"USE `{database}_far`")
    handle.query(statement)
    handle.query(f"USE `{database}`")


def _check_alter(sql: str, *, is_on_cluster: bool) -> None:
    if not is_on_cluster or not re.match(r"\s*ALTER TABLE \w+_local ", sql):
        raise Refused("Code: 48. DB::Exception: a Distributed table has no mutations (NOT_IMPLEMENTED)")
    if re.search(r"\bSELECT\b", sql):
        raise Refused("Code: 36. DB::Exception: ALTER DELETE with subquery may be nondeterministic (BAD_ARGUMENTS)")


def _plan(handle: Any, sql: str, database: str, parameters: dict[str, str]) -> None:
    """Plan a query over Distributed tables whose servers are away. Raises: Refused."""
    handle.query(f"USE `{database}_far`")
    try:
        handle.query(f"EXPLAIN {sql[sql.index('SELECT') :]}", params=parameters or None)
    except RuntimeError as exc:
        found = _CODE.search(str(exc))
        if found is not None and int(found[1]) == DENIED:
            raise Refused(str(exc)) from exc
    finally:
        handle.query(f"USE `{database}`")
