"""`spanreplay migrate` and `spanreplay collect`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import click

from spanreplay.model.config import OTLP_GRPC_PORT, OTLP_HTTP_PORT, read_data_dir
from spanreplay.model.errors import SpanreplayError
from spanreplay_collector import limits
from spanreplay_collector.collector import Collector, CollectorSettings
from spanreplay_collector.options import (
    PORT,
    access_options,
    add_credentials,
    read_access,
    read_retention,
    read_store_url,
    retention_options,
)
from spanreplay_collector.running import run_until_signal, set_up_logging
from spanreplay_collector.store.cluster import checked_cluster
from spanreplay_collector.store.deferred import DeferredStore, wait_for_store
from spanreplay_collector.store.retainer import Retainer
from spanreplay_collector.store.store import Store

__all__ = ["collect", "migrate"]


@click.command()
@click.option(
    "--store",
    "url",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="chdb:///absolute/directory or http://user:password@host:8123/database; "
    "default: the directory `chdb` in SPANREPLAY_DIR, as for `spanreplay up`. "
    "SPANREPLAY_STORE_USER and SPANREPLAY_STORE_PASSWORD count where the URL names no user.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="Keep trying for this long while the server does not answer.",
)
@click.option(
    "--cluster",
    default="",
    metavar="NAME",
    help="Make replicated tables on every server of this cluster (of ClickHouse's `remote_servers`), and tables that "
    "distribute the runs over its shards. Repeat it after you added a replica.",
)
@click.option("--json", "as_json", is_flag=True, help="Print which migrations were applied now as JSON.")
def migrate(url: str | None, wait_s: float, cluster: str, as_json: bool) -> None:
    """Make or update the tables of the store."""
    if cluster and (url or "chdb:").startswith("chdb:"):
        raise click.UsageError("--cluster needs a ClickHouse server: an embedded store is one process")
    address = add_credentials(url or f"chdb://{read_data_dir() / 'chdb'}", os.environ)

    async def open_store() -> Store:
        return await wait_for_store(
            address, lambda line: click.echo(line, err=True), wait_s=wait_s, open_store=Store.open
        )

    try:
        named = checked_cluster(cluster) if cluster else ""
        with asyncio.run(open_store()) as store:
            applied = store.migrate(named)
    except SpanreplayError as exc:
        raise click.ClickException(f"{exc}\n{exc.hint}" if exc.hint else str(exc)) from exc
    if as_json:
        click.echo(json.dumps({"applied": applied}))
    else:
        for name in applied:
            click.echo(name)
    click.echo(f"applied {len(applied)}" if applied else "already up to date", err=True)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the log; default: the directory `collector` in SPANREPLAY_DIR.",
)
@click.option(
    "--store",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="http://host:8123/database of a ClickHouse server, with the tables that `spanreplay migrate` makes; "
    "user and password in SPANREPLAY_STORE_USER and SPANREPLAY_STORE_PASSWORD.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", type=PORT, default=OTLP_HTTP_PORT, show_default=True, help="OTLP over HTTP.")
@click.option("--grpc-port", type=PORT, default=OTLP_GRPC_PORT, show_default=True, help="OTLP over gRPC.")
@click.option("--phoenix-url", default="", metavar="URL", help="Show spans in this Phoenix; its key: PHOENIX_API_KEY.")
@click.option(
    "--log-mib-max",
    type=click.IntRange(64),
    default=limits.LOG_BYTES_MAX // limits.MIB,
    show_default=True,
    help="Disk limit of the log while the store is unavailable; beyond it senders are told to wait.",
)
@retention_options
@access_options
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON when it listens.")
def collect(data_dir: Path | None, store: str | None, log_mib_max: int, is_json: bool, **options: Any) -> None:
    """Run a collector alone, until Ctrl-C: OTLP in, a ClickHouse server behind.

    It starts, and acknowledges what it has written to its log, while the store is away or has no tables yet.
    """
    set_up_logging()
    access = {name: options.pop(name) for name in ("tokens_file", "tls_cert", "tls_key", "tls_client_ca")}
    tokens, tls = read_access(**access)
    retention = read_retention(**{name: options.pop(name) for name in ("keep_days", "drop_failures")})
    settings = CollectorSettings(
        data_dir=data_dir or read_data_dir() / "collector",
        tokens=tokens,
        tls=tls,
        phoenix_token=os.environ.get("PHOENIX_API_KEY", "") if options["phoenix_url"] else "",
        log_bytes_max=log_mib_max * limits.MIB,
        **options,
    )
    deferred = DeferredStore(read_store_url(store))

    class Part:
        """The collector, and the store that is closed after it stops."""

        def __init__(self) -> None:
            self.collector = Collector(settings, deferred)
            self._retainer = Retainer(deferred, self.collector.metrics, retention)

        async def start(self) -> Collector:
            """Listen."""
            await self.collector.start()
            self._retainer.start()
            return self.collector

        async def stop(self) -> None:
            """Load the waiting records if the store is up, then close it."""
            await self.collector.stop()
            await asyncio.to_thread(self._retainer.stop)
            await asyncio.to_thread(deferred.close)

    def announce(collector: Collector) -> None:
        ports = {"http_port": collector.http_port, "grpc_port": collector.grpc_port}
        click.echo(f"collector listens on {settings.host}: OTLP/HTTP {ports['http_port']}, OTLP/gRPC "
                   f"{ports['grpc_port']}", err=True)  # fmt: skip
        if is_json:
            click.echo(json.dumps(ports))

    if not asyncio.run(run_until_signal(Part(), announce)):
        raise click.exceptions.Exit(1)
    click.echo("stopped", err=True)
