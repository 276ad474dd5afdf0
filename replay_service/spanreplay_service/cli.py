"""`spanreplay up` and `spanreplay serve`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spanreplay.model.config import (
    OTLP_GRPC_PORT,
    OTLP_HTTP_PORT,
    PHOENIX_PORT,
    SERVICE_PORT,
    read_data_dir,
)
from spanreplay.model.errors import ConfigError
from spanreplay.model.how_to_install import install_command
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

if TYPE_CHECKING:
    from spanreplay_service.up import UpSettings, UpStatus

__all__ = ["serve", "up"]


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept; default: the directory `server` in SPANREPLAY_DIR.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", type=PORT, default=OTLP_HTTP_PORT, show_default=True, help="OTLP over HTTP.")
@click.option("--grpc-port", type=PORT, default=OTLP_GRPC_PORT, show_default=True, help="OTLP over gRPC.")
@click.option("--port", type=PORT, default=SERVICE_PORT, show_default=True, help="The replay service.")
@click.option("--phoenix-port", type=PORT, default=PHOENIX_PORT, show_default=True, help="Phoenix's pages.")
@click.option("--phoenix-url", default="", metavar="URL", help="Use this Phoenix instead of starting one.")
@click.option("--no-phoenix", is_flag=True, help="Don't start Phoenix.")
@click.option(
    "--clickhouse-url",
    default="",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="Store in a ClickHouse server, http://user:password@host:8123/database, instead of here.",
)
@retention_options
@access_options
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON when everything is ready.")
def up(is_json: bool, **options: Any) -> None:
    """Run collector, store, replay service and Phoenix here, until Ctrl-C.

    Every port may be 0: a free one is taken. SPANREPLAY_TOKEN, or --tokens, is required outside localhost.
    """
    try:
        from spanreplay_service.up import Up
    except ImportError as exc:
        raise ConfigError(
            f"`spanreplay up` needs a package that is missing: {exc.name}",
            hint=install_command("embedded,service"),
        ) from exc
    from spanreplay.cli.terminal import say, working

    set_up_logging()
    settings = build_settings(**options)

    def announce(status: UpStatus) -> None:
        for line in describe(status):
            say(line)
        if is_json:
            click.echo(status.to_json())

    was_ready = asyncio.run(run_until_signal(Up(settings, say=say, working=working), announce))
    say("stopped" if was_ready else "stopped before everything was ready")
    if not was_ready:
        raise click.exceptions.Exit(1)


@click.command()
@click.option(
    "--store",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="http://host:8123/database of a ClickHouse server; "
    "user and password in SPANREPLAY_STORE_USER and SPANREPLAY_STORE_PASSWORD.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=SERVICE_PORT, show_default=True, help="Port to listen on.")
@click.option("--phoenix-url", default="", metavar="URL", help="Show verdicts in this Phoenix; key: PHOENIX_API_KEY.")
@click.option("--phoenix-public-url", default="", metavar="URL", help="Where people open Phoenix, if elsewhere.")
@access_options
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON when it listens.")
def serve(store: str | None, is_json: bool, **options: Any) -> None:
    """Run the replay service alone, until Ctrl-C, over a ClickHouse server.

    It waits for the store and its tables before it listens.
    """
    try:
        from spanreplay_service.serve import Serve, ServeSettings
    except ImportError as exc:
        raise ConfigError(
            f"`spanreplay serve` needs a package that is missing: {exc.name}",
            hint=install_command("service"),
        ) from exc
    from spanreplay.cli.terminal import say

    set_up_logging()
    access = {name: options.pop(name) for name in ("tokens_file", "tls_cert", "tls_key", "tls_client_ca")}
    tokens, tls = read_access(**access)
    settings = ServeSettings(
        store_url=read_store_url(store),
        tokens=tokens,
        tls=tls,
        phoenix_token=os.environ.get("PHOENIX_API_KEY", "") if options["phoenix_url"] else "",
        **options,
    )

    def announce(endpoint: str) -> None:
        say(f"replay service listens on {endpoint}")
        if is_json:
            click.echo(json.dumps({"endpoint": endpoint}))

    was_ready = asyncio.run(run_until_signal(Serve(settings, say=say), announce))
    say("stopped" if was_ready else "stopped before the store was ready")
    if not was_ready:
        raise click.exceptions.Exit(1)


def build_settings(
    *,
    data_dir: Path | None,
    no_phoenix: bool,
    tokens_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    keep_days: int | None,
    drop_failures: bool,
    **same: Any,
) -> UpSettings:
    """Build the settings from the command-line options. Raises: ConfigError."""
    from spanreplay_service.up import UpSettings

    tokens, tls = read_access(tokens_file=tokens_file, tls_cert=tls_cert, tls_key=tls_key, tls_client_ca=tls_client_ca)
    if url := same.pop("clickhouse_url"):
        same["clickhouse_url"] = add_credentials(url, os.environ)
    return UpSettings(
        data_dir=data_dir or read_data_dir() / "server",
        is_phoenix_wanted=not no_phoenix,
        phoenix_token=os.environ.get("PHOENIX_API_KEY", "") if same["phoenix_url"] else "",
        tokens=tokens,
        tls=tls,
        retention=read_retention(keep_days=keep_days, drop_failures=drop_failures),
        **same,
    )


def describe(status: UpStatus) -> list[str]:
    """Build the lines shown to the user when everything is ready; pure."""
    lines = [
        f"spanreplay is up, its data is in {status.data_dir}",
        f"  collector       {status.otlp_endpoint} (OTLP/HTTP), port {status.grpc_port} (OTLP/gRPC)",
        f"  replay service  {status.endpoint}",
    ]
    if status.phoenix_url:
        lines.append(f"  Phoenix         {status.phoenix_url}")
    return [
        *lines,
        "in the shell of your agent:",
        f"  export OTEL_EXPORTER_OTLP_ENDPOINT={status.otlp_endpoint}",
        f"  export SPANREPLAY_ENDPOINT={status.endpoint}",
    ]
