"""`spanreplay diff`: show how two recorded runs differ, or a run and its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from spanreplay.cli.runs.prices import price_option
from spanreplay.cli.runs.runs import complete_run, load
from spanreplay.cli.terminal import open_console, print_json, say
from spanreplay.replayer.compare.two_runs.difference import RunDiff, compare_runs
from spanreplay.replayer.resolve.budget import parse_price
from spanreplay.report.two_runs import render_page_of_runs, render_runs

SAME, DIFFERENT, INCOMPLETE = 0, 3, 4
_EVERYTHING: Final = "*"


@click.command("diff")
@click.argument("a", metavar="A", shell_complete=complete_run)
@click.argument("b", metavar="B", shell_complete=complete_run)
@click.option(
    "--only", default=_EVERYTHING, metavar="CALLS", help="Compare only these calls, e.g. 'llm' or 'tool:get_*'."
)
@click.option("--cost", "with_cost", is_flag=True, help="Show which places in the code cause the difference in cost.")
@price_option
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write one HTML page."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def diff_command(
    ctx: click.Context,
    *,
    a: str,
    b: str,
    only: str,
    with_cost: bool,
    prices: tuple[str, ...],
    page: Path | None,
    as_json: bool,
) -> None:
    """Show how run B differs from run A: the first call that differs, and where its input comes from.

    A and B are run ids, `latest` or files. Nothing is run: the recordings are compared.

    \b
    spanreplay diff MONDAY TUESDAY
    spanreplay diff MONDAY TUESDAY --cost --price 'gpt-x=1.25,10'

    Exit status: 0 the same, 3 different, 4 no difference found but one of them is incomplete;
    1 error, 2 wrong usage.
    """
    found = compare_runs(load(a), load(b), only=only, prices=tuple(parse_price(each) for each in prices))
    if page is not None:
        page.write_text(render_page_of_runs(found), encoding="utf-8")
        say(f"wrote {page}")
    if as_json:
        print_json(found.to_json())
    else:
        console = open_console()
        for line in render_runs(found, with_cost=with_cost or bool(prices)):
            console.print(line)
    ctx.exit(_status(found))


def _status(found: RunDiff) -> int:
    if not found.is_same:
        return DIFFERENT
    return INCOMPLETE if found.reasons else SAME
