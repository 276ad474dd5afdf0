"""`spanreplay up`."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spanreplay.config import (
    OTLP_GRPC_PORT,
    OTLP_HTTP_PORT,
    PHOENIX_PORT,
    SERVICE_PORT,
    read_data_dir,
    read_setting,
)
from spanreplay.errors import ConfigError

if TYPE_CHECKING:
    from spanreplay_service.up import UpSettings, UpStatus

__all__ = ["up"]

_PORT = click.IntRange(0, 65535)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept; default: the directory `server` in SPANREPLAY_DIR.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", type=_PORT, default=OTLP_HTTP_PORT, show_default=True, help="OTLP over HTTP.")
@click.option("--grpc-port", type=_PORT, default=OTLP_GRPC_PORT, show_default=True, help="OTLP over gRPC.")
@click.option("--port", type=_PORT, default=SERVICE_PORT, show_default=True, help="The replay service.")
@click.option("--phoenix-port", type=_PORT, default=PHOENIX_PORT, show_default=True, help="Phoenix's pages.")
@click.option("--phoenix-url", default="", metavar="URL", help="Use this Phoenix instead of starting one.")
@click.option("--no-phoenix", is_flag=True, help="Do without Phoenix.")
@click.option(
    "--clickhouse-url",
    default="",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="Store in a ClickHouse server, http://user:password@host:8123/database, instead of here.",
)
@click.option("--tokens", "tokens_file", type=_FILE, help="JSON list of {tenant, token or sha256, expires}.")
@click.option("--tls-cert", type=_FILE, help="PEM certificate; with --tls-key.")
@click.option("--tls-key", type=_FILE, help="PEM private key.")
@click.option("--tls-client-ca", type=_FILE, help="Clients must show a certificate signed by this CA.")
@click.option("--allow-plaintext", is_flag=True, help="Listen beyond loopback without TLS: a proxy adds it.")
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON when everything is ready.")
def up(is_json: bool, **options: Any) -> None:
    """Run collector, store, replay service and Phoenix here, until Ctrl-C.

    Every port may be 0: a free one is taken. SPANREPLAY_TOKEN, or --tokens, is required beyond loopback.
    """
    try:
        from spanreplay_service.up import Up, run_up
    except ImportError as exc:
        raise ConfigError(
            f"`spanreplay up` needs a package that is missing: {exc.name}",
            hint="pip install 'spanreplay[embedded,service]'",
        ) from exc
    from spanreplay.cli.terminal import say, working

    # What libraries warn about (a connection retried, a query refused) reaches the user as one error of ours.
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.levelno >= logging.ERROR or record.name.startswith("spanreplay"))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[handler])
    settings = build_settings(**options)

    def announce(status: UpStatus) -> None:
        for line in describe(status):
            say(line)
        if is_json:
            click.echo(status.to_json())

    was_ready = asyncio.run(run_up(Up(settings, say=say, working=working), announce))
    say("stopped" if was_ready else "stopped before everything was ready")
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
    allow_plaintext: bool,
    **same: Any,
) -> UpSettings:
    """The settings that the options stand for. Raises: ConfigError."""
    from spanreplay_collector.receive.auth import TlsFiles, Token, load_tokens
    from spanreplay_service.up import UpSettings

    if bool(tls_cert) != bool(tls_key) or (tls_client_ca and not tls_cert):
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    tokens = load_tokens(tokens_file) if tokens_file else ()
    own = read_setting("SPANREPLAY_TOKEN")
    if own:
        tokens = (*tokens, Token.of(own))
    return UpSettings(
        data_dir=data_dir or read_data_dir() / "server",
        is_phoenix_wanted=not no_phoenix,
        phoenix_token=os.environ.get("PHOENIX_API_KEY", "") if same["phoenix_url"] else "",
        tokens=tokens,
        tls=TlsFiles(tls_cert, tls_key, tls_client_ca) if tls_cert and tls_key else None,
        is_plaintext_allowed=allow_plaintext,
        **same,
    )


def describe(status: UpStatus) -> list[str]:
    """What a user reads when everything is ready; pure."""
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
