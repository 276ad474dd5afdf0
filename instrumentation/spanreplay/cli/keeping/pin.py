"""`spanreplay pin`: keep a run at a service whatever its age."""

from __future__ import annotations

import click

from spanreplay.cli.runs.runs import complete_run, open_catalog, resolve
from spanreplay.cli.terminal import print_json, say
from spanreplay.model.errors import ConfigError


@click.command("pin")
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the pins: a ticket's number.")
@click.option("--off", is_flag=True, help="Unpin instead: also a run that is kept because it failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids of the runs as JSON.")
def pin_command(*, run_ids: tuple[str, ...], reason: str, off: bool, as_json: bool) -> None:
    """Keep runs at the service in SPANREPLAY_ENDPOINT, whatever its --keep-days.

    Runs that failed are kept without this. What a kept run needs (the process that served a request) is kept with it.
    """
    with open_catalog() as catalog:
        pin = getattr(catalog, "pin", None)
        if pin is None:
            raise ConfigError(
                "only a service removes runs by age, so there is nothing to pin here",
                hint="recordings in a directory stay until `spanreplay erase`; for a service set SPANREPLAY_ENDPOINT",
            )
        pinned = [pin(resolve(catalog, run_id), is_pinned=not off, reason=reason) for run_id in run_ids]
    if as_json:
        print_json({"unpinned" if off else "pinned": pinned})
        return
    for run_id in pinned:
        say(f"{'unpinned' if off else 'pinned'} {run_id}")
