"""The cost of live model calls, and the ceiling that a plan puts on it.

A call begins only while the money spent, plus the expected cost of the calls in progress, is below the ceiling. Token
counts come from the answers. An answer without them is counted by its length: four characters per token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.model.errors import ConfigError
from spanreplay.runtime.edits.selector import Selector

CHARACTERS_A_TOKEN: Final = 4
PRICES_MAX: Final = 200
_MILLION: Final = 1_000_000
_PAID: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value})
_VERSION: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest|preview)\Z")


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens, in and out; the model's name may contain `*` and `?`."""

    model: str
    input_usd: float
    output_usd: float

    def __post_init__(self) -> None:
        for value in (self.input_usd, self.output_usd):
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"the price of {self.model!r} is not an amount: {value!r}")

    def cost_usd(self, tokens_in: int, tokens_out: int) -> float:
        """Return the cost of these tokens."""
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / _MILLION


@dataclass(frozen=True)
class Budget:
    """A ceiling in US dollars, and the price of each model: prices change too often to be hard-coded."""

    max_cost_usd: float
    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        value = self.max_cost_usd
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"--max-cost {value!r} is not an amount in US dollars")
        if len(self.prices) > PRICES_MAX:
            raise ConfigError(f"a plan has at most {PRICES_MAX} prices, not {len(self.prices)}")

    def find_price(self, model: str) -> Price:
        """Return the price of a model, by its name or without its version. Raises: ConfigError if unknown."""
        names = (model, model.rpartition("/")[2])
        for name in dict.fromkeys((*names, *(_VERSION.sub("", n) for n in names))):
            found = next((p for p in self.prices if Selector(p.model).matches(name, "")), None)
            if found is not None:
                return found
        raise ConfigError(
            f"no price known for {model!r}, so --max-cost can't be enforced",
            hint=f"state it in US dollars for a million tokens, in and out: --price '{model or 'MODEL'}=1.25,10'",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a plan."""
        prices = [[p.model, p.input_usd, p.output_usd] for p in self.prices]
        return {"max_cost_usd": self.max_cost_usd, "prices": prices}

    @classmethod
    def from_json(cls, value: Any) -> Budget:
        """Read the form that `to_json` returns. Raises: ConfigError, KeyError, TypeError, ValueError."""
        prices = tuple(Price(str(m), float(i), float(o)) for m, i, o in value["prices"])
        return cls(float(value["max_cost_usd"]), prices)


def parse_price(text: str) -> Price:
    """Parse a price, MODEL=IN,OUT. Raises: ConfigError."""
    model, _, amounts = text.rpartition("=")
    parts = amounts.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not model.strip() or len(numbers) not in (1, 2):
        raise ConfigError(
            f"--price {text!r} is not a price",
            hint="US dollars for a million tokens, in and out: --price 'gpt-x=1.25,10'",
        )
    return Price(model.strip(), numbers[0], numbers[-1] if len(numbers) == 2 else 0.0)


def is_paid(kind: str) -> bool:
    """Whether calls of this kind cost tokens."""
    return kind in _PAID


@dataclass
class CostMeter:
    """The cost of live calls so far. Not thread-safe: the session's lock guards it."""

    budget: Budget
    spent_usd: float = 0.0
    is_over: bool = False
    is_estimated: bool = False
    _under_way: dict[int, float] = field(default_factory=dict)
    _tokens_out_max: dict[str, int] = field(default_factory=dict)

    def admit(self, seq: int, meta: Mapping[str, Any], request: str) -> bool:
        """Whether a call may begin; if so, it counts as in progress. Raises: ConfigError for an unknown model."""
        model = str(meta.get("model", ""))
        price = self.budget.find_price(model)
        if self.spent_usd + sum(self._under_way.values()) >= self.budget.max_cost_usd:
            self.is_over = True
            return False
        self._under_way[seq] = price.cost_usd(_count(request), self._tokens_out_max.get(model, 0))
        return True

    def settle(self, seq: int, meta: Mapping[str, Any], request: str, response: str) -> None:
        """Add the cost of a call that has ended."""
        if self._under_way.pop(seq, None) is None:
            return
        model = str(meta.get("model", ""))
        stated = [meta.get(name) for name in ("tokens_in", "tokens_out")]
        tokens_in, tokens_out = (value if isinstance(value, int) else 0 for value in stated)
        if not any(isinstance(value, int) for value in stated):
            self.is_estimated = True
            tokens_in, tokens_out = _count(request), _count(response)
        self._tokens_out_max[model] = max(tokens_out, self._tokens_out_max.get(model, 0))
        self.spent_usd += self.budget.find_price(model).cost_usd(tokens_in, tokens_out)
        self.is_over = self.is_over or self.spent_usd > self.budget.max_cost_usd

    def describe(self) -> dict[str, Any]:
        """Return the form that a verdict contains."""
        described: dict[str, Any] = {
            "live_usd": round(self.spent_usd, 9),
            "max_usd": self.budget.max_cost_usd,
            "exceeded": self.is_over,
        }
        return {**described, "estimated": True} if self.is_estimated else described


def _count(text: str) -> int:
    return len(text) // CHARACTERS_A_TOKEN
