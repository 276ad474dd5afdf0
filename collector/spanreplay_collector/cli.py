"""`spanreplay migrate`."""

from __future__ import annotations

import click

from spanreplay.config import read_data_dir
from spanreplay.errors import SpanreplayError
from spanreplay_collector.store import Store

__all__ = ["migrate"]


@click.command()
@click.option(
    "--store",
    "url",
    envvar="SPANREPLAY_STORE",
    metavar="URL",
    help="chdb:///absolute/directory or http://user:password@host:8123/database; "
    "default: the directory `chdb` in SPANREPLAY_DIR, as for `spanreplay up`.",
)
def migrate(url: str | None) -> None:
    """Make or update the tables of the store."""
    try:
        with Store.open(url or f"chdb://{read_data_dir() / 'chdb'}") as store:
            applied = store.migrate()
    except SpanreplayError as exc:
        raise click.ClickException(f"{exc}\n{exc.hint}" if exc.hint else str(exc)) from exc
    for name in applied:
        click.echo(name)
    click.echo(f"applied {len(applied)}" if applied else "already up to date", err=True)
