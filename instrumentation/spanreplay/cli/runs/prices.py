"""The options about the cost of live calls, the same for every command that has them."""

from __future__ import annotations

from typing import Final

import click

__all__ = ["max_cost_option", "price_option"]

max_cost_option: Final = click.option(
    "--max-cost", type=float, metavar="USD", help="Spending limit for live calls to models; exit 6."
)
price_option: Final = click.option(
    "--price", "prices", multiple=True, metavar="MODEL=IN,OUT", help="US dollars per million tokens, in and out."
)
