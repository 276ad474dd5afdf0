"""A store on a ClickHouse cluster: replicated tables, each run on one shard, one Distributed table in front.

The statements run on the engine as far as one process can: see `support.clickhouse_cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from urllib.parse import urlsplit

import chdb
import clickhouse_connect
import pytest
from click.testing import CliRunner

from spanreplay.model.errors import RunNotFound, StoreError
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.model_drift import DriftQuery
from spanreplay_collector.cli import migrate as migrate_command
from spanreplay_collector.store.cluster import CLUSTER_SETTINGS, apply_cluster_settings, for_cluster
from spanreplay_collector.store.migrate import read_migrations
from spanreplay_collector.store.store import Store
from support.clickhouse_cluster import CLUSTER
from support.runs import make_payload, make_recording
from support.stores import PASSWORD, Front, fresh_chdb_url, fresh_database

NOW_NS = int(datetime(2100, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000_000
TENANTS = ("acme", "globex")
RUN_IDS = [f"0190000000007000800000000000000{number}" for number in range(3)]


@pytest.fixture(scope="module")
def cluster_front() -> Iterator[Front]:
    """A server of a cluster."""
    server = Front(is_cluster=True)
    yield server
    server.kill()


@pytest.fixture
def cluster_url(cluster_front: Front) -> str:
    """The URL of an empty database there."""
    return cluster_front.url(fresh_database())


@pytest.fixture
def store(cluster_url: str) -> Iterator[Store]:
    """A store that is distributed over the cluster."""
    with Store.open(cluster_url) as opened:
        opened.migrate(CLUSTER)
        yield opened


def _forms() -> list[str]:
    return [
        form
        for migration in read_migrations()
        for statement in migration.statements
        for form in for_cluster(statement, CLUSTER, "db")
    ]


def test_c8_ddl_for_replicated_and_distributed_parses_on_the_engine() -> None:
    """Every statement of the schema, as a cluster gets it, is read by ClickHouse's own parser."""
    connection = chdb.connect()  # type: ignore[no-untyped-call]  # chDB's own signature
    for form in _forms():
        parsed = connection.query(f"EXPLAIN AST {form}").bytes().decode()
        assert parsed.startswith('"Create'), form
    connection.close()


def test_c8_every_table_is_replicated_and_distributed() -> None:
    """Each table has a replicated one on each shard and one in front, which keeps a run on one shard."""
    forms = _forms()
    assert all(f"ON CLUSTER '{CLUSTER}'" in form for form in forms)
    made = [form.split()[5] for form in forms if form.startswith("CREATE TABLE")]
    fronts = {name for name in made if not name.endswith("_local")}
    assert fronts >= {"spans", "blobs", "boundaries", "runs", "spans_apart", "pins", "erased"}
    assert sorted(made) == sorted([*fronts, *(f"{name}_local" for name in fronts)])
    for form in forms:
        if "_local ON CLUSTER" in form and form.startswith("CREATE TABLE"):
            assert "MergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}'" in form
            assert "ENGINE = Replicated" in form
        elif form.startswith("CREATE TABLE"):
            assert f"Distributed('{CLUSTER}', 'db', '" in form
            assert "cityHash64(tenant, run_id))" in form


def test_c8_a_statement_without_a_form_for_a_cluster_is_refused() -> None:
    """A later migration cannot change one server alone by mistake."""
    with pytest.raises(StoreError, match="no form for a cluster"):
        for_cluster("ALTER TABLE spans ADD COLUMN IF NOT EXISTS n UInt8", CLUSTER, "db")


def test_c8_migrate_is_idempotent_on_a_cluster(cluster_url: str) -> None:
    """The second call applies nothing, with or without the name; another layout is refused."""
    names = [f"{m.number:04d}_{m.name}" for m in read_migrations()]
    for arguments, applied in ((["--cluster", CLUSTER], names), (["--cluster", CLUSTER], []), ([], [])):
        result = CliRunner().invoke(migrate_command, ["--store", cluster_url, *arguments])
        assert (result.exit_code, result.stdout.split()) == (0, applied), result.output
    other = CliRunner().invoke(migrate_command, ["--store", cluster_url, "--cluster", "other"])
    assert other.exit_code == 1
    assert f"on the cluster '{CLUSTER}', not on the cluster 'other'" in other.stderr


def test_c8_tables_of_one_server_do_not_become_a_cluster(store_url: str) -> None:
    """Runs that are there already would be on one server, and nobody would find them."""
    with Store.open(store_url) as plain:
        plain.migrate()
        with pytest.raises(StoreError, match="are on one server, not on the cluster 'flight'"):
            plain.migrate(CLUSTER)


def test_c8_an_embedded_store_is_no_cluster() -> None:
    """The command says so, and an invalid name is refused."""
    embedded = CliRunner().invoke(migrate_command, ["--store", fresh_chdb_url(), "--cluster", CLUSTER])
    assert embedded.exit_code == 2
    invalid = CliRunner().invoke(migrate_command, ["--store", "http://127.0.0.1:1", "--cluster", "a' b"])
    assert "is not the name of a cluster" in invalid.stderr


def test_c8_a_store_on_a_cluster_reads_searches_and_removes(store: Store) -> None:
    """Loading twice, reading, searching, pinning, ageing and erasing send what a cluster's engine accepts."""
    kept, old, erased = (make_recording(run_id, calls=3) for run_id in RUN_IDS)
    for run in (kept, old, erased):
        payload = make_payload(run)
        assert store.load("acme", [payload], run.run_id) == 4
        assert store.load("acme", [payload], run.run_id) == 4
        assert len(store.read_run("acme", run.run_id)) == 4
    assert {each.root.run_id for each in store.search("acme", RunQuery(trace_id=kept.root.trace_id))}
    store.scan_drift("acme", DriftQuery())
    store.pin("acme", kept.run_id)
    assert store.find_related("acme", run_ids=[erased.run_id], users=["nobody"]) == [erased.run_id]
    store.erase("acme", [erased.run_id])
    assert store.load("acme", [make_payload(erased)], "again") == 0
    assert store.remove_older(NOW_NS).runs == 1
    assert [each.root.run_id for each in store.search("acme", RunQuery())] == [kept.run_id]
    assert len(store.read_run("acme", kept.run_id)) == 4
    with store._engine.client() as client:
        client.query("SELECT run, app FROM calls")


def test_c8_tenants_of_a_cluster_never_see_each_other(store: Store) -> None:
    """The same run of two tenants is two runs: reading, searching and erasing one leaves the other."""
    run = make_recording(RUN_IDS[0], calls=2)
    for tenant in TENANTS:
        store.load(tenant, [make_payload(run)], "one")
    alone = make_recording(RUN_IDS[1], calls=1)
    store.load("acme", [make_payload(alone)], "two")
    with pytest.raises(RunNotFound):
        store.read_run("globex", alone.run_id)
    assert [each.root.run_id for each in store.search("globex", RunQuery())] == [run.run_id]
    store.erase("globex", [run.run_id, alone.run_id])
    assert {each.root.run_id for each in store.search("acme", RunQuery())} == {run.run_id, alone.run_id}
    assert len(store.read_run("acme", run.run_id)) == 3


def test_c8_a_user_who_may_set_nothing_is_not_asked_to(cluster_front: Front) -> None:
    """Settings of a cluster go only to a server that knows them and lets this user set them."""
    address = urlsplit(cluster_front.url("default"))
    client = clickhouse_connect.get_client(
        host=str(address.hostname), port=int(address.port or 0), username="default", password=PASSWORD
    )
    known = client.server_settings
    name = next(iter(CLUSTER_SETTINGS))
    client.server_settings = {name: known[name]._replace(readonly=1)}  # as a server tells a user who may only read
    apply_cluster_settings(client)
    assert all(client.get_client_setting(each) is None for each in CLUSTER_SETTINGS)
    client.server_settings = known
    apply_cluster_settings(client)
    assert {each: client.get_client_setting(each) for each in CLUSTER_SETTINGS} == {
        each: str(value) for each, value in CLUSTER_SETTINGS.items()
    }
