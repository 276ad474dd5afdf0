"""`spanreplay ship`: send the recordings in the local directory to the collector."""

from __future__ import annotations

from dataclasses import asdict

import click

from spanreplay.cli.terminal import counting, print_json, say
from spanreplay.model import config
from spanreplay.model.errors import ConfigError


@click.command("ship")
@click.option("--endpoint", help="OTLP/HTTP address of the collector; default: OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--timeout", type=click.IntRange(1, 86_400), default=60, show_default=True, help="Time limit in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the delivery as JSON.")
@click.pass_context
def ship_command(ctx: click.Context, *, endpoint: str | None, timeout: int, as_json: bool) -> None:
    """Send local recordings to the collector; recordings that it accepts are deleted here.

    Sends recordings that ended agents left behind, and those made while there was no collector.
    """
    from spanreplay.recording.spool import read_target, ship_all
    from spanreplay.recording.spool.directory import iter_spool_files
    from spanreplay.recording.spool.target import target_of

    token = config.read_setting("SPANREPLAY_TOKEN")
    target = target_of(endpoint, token=token) if endpoint else read_target()
    if target is None:
        raise ConfigError(
            "there is no collector to ship to",
            hint="set OTEL_EXPORTER_OTLP_ENDPOINT or give --endpoint http://127.0.0.1:4318",
        )
    directory = config.read_data_dir()
    files = sum(1 for _ in iter_spool_files(directory))
    with counting(f"shipping to {target.url}", files) as told:
        report = ship_all(directory, target, timeout_ms=timeout * 1000, told=told)
    if as_json:
        print_json(asdict(report))
    say(f"shipped {report.payloads} records, {report.bytes:,} bytes, from {directory} to {target.url}")
    if report.live:
        say(f"{report.live} files are still being written and were not shipped")
    if report.refused:
        say(f"the collector refused {report.refused} records; they are kept in {directory}/spool/refused")
    if report.error:
        say(f"{report.remaining} files remain: {report.error}")
    ctx.exit(1 if report.error or report.refused else 0)
