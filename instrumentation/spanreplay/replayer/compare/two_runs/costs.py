"""Compares the cost of two runs' calls, by the place that makes them; pure.

Prices change too often to be hard-coded: without a price, a place is described by its tokens and calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spanreplay.model.call import CallRecord
from spanreplay.replayer.resolve.budget import Budget, Price, is_paid

__all__ = ["CostDiff", "PlaceCost", "Spent", "compare_costs"]


@dataclass
class Spent:
    """The consumption of some calls; `usd` is None if a model has no price."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0

    def add(self, call: CallRecord, prices: Budget) -> None:
        """Add one more call."""
        tokens = [call.meta.get(name) for name in ("tokens_in", "tokens_out")]
        tokens_in, tokens_out = (value if isinstance(value, int) else 0 for value in tokens)
        self.calls += 1
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        if not prices.prices:
            self.usd = None
        elif self.usd is not None:
            model = str(call.meta.get("response_model") or call.meta.get("model") or "")
            self.usd += prices.find_price(str(call.meta.get("model") or model)).cost_usd(tokens_in, tokens_out)


@dataclass(frozen=True)
class PlaceCost:
    """A place in the agent's code that calls models, in both runs."""

    boundary: str
    code: str
    first_more: int
    """The number, in B, of the first call that A doesn't make there; 0: B makes no more calls than A."""
    a: Spent
    b: Spent

    @property
    def weight(self) -> float:
        """The place's share of the difference, in US dollars, or in tokens if there is no price."""
        if self.a.usd is not None and self.b.usd is not None:
            return abs(self.b.usd - self.a.usd)
        return float(abs(self.b.tokens_in + self.b.tokens_out - self.a.tokens_in - self.a.tokens_out))


@dataclass(frozen=True)
class CostDiff:
    """The cost of both runs, in total and by place, the largest difference first."""

    a: Spent = field(default_factory=Spent)
    b: Spent = field(default_factory=Spent)
    places: tuple[PlaceCost, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the form of schema run_diff/1."""
        return asdict(self)


def compare_costs(a: Sequence[CallRecord], b: Sequence[CallRecord], prices: tuple[Price, ...] = ()) -> CostDiff:
    """Compare the model costs of two runs. Raises: ConfigError for a model without price, if others have one."""
    budget = Budget(0.0, prices)
    total_a, total_b = Spent(), Spent()
    places: dict[tuple[str, str], tuple[Spent, Spent]] = {}
    numbers: dict[tuple[str, str], list[int]] = {}
    for calls, at, total in ((a, 0, total_a), (b, 1, total_b)):
        for call in calls:
            if not is_paid(call.kind):
                continue
            place = (call.boundary, call.code)
            places.setdefault(place, (Spent(), Spent()))[at].add(call, budget)
            total.add(call, budget)
            if at:
                numbers.setdefault(place, []).append(call.number)
    found = [
        PlaceCost(*place, (numbers.get(place, [])[then.calls :] or [0])[0], then, now)
        for place, (then, now) in places.items()
    ]
    return CostDiff(total_a, total_b, tuple(sorted(found, key=lambda each: -each.weight)))
