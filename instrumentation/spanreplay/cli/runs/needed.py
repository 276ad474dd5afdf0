"""Find the few earlier units of a process whose state a unit needs, by replaying it after ever fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from spanreplay.cli.terminal import say
from spanreplay.report.shape import Verdict

__all__ = ["NEEDED_MAX", "find_needed", "is_better", "iter_tries", "mark_needed"]

NEEDED_MAX: Final = 3
"""How many units are found one by one. A unit that needs more is said to need all units after the last of these."""


def iter_tries(run_ids: Sequence[str]) -> Generator[tuple[str, ...], bool, tuple[str, ...]]:
    """Yield the units to replay before a unit, and take whether it was identical; return those it needs, in order.

    The first try is all of them: where these are not enough, it returns none. Then it takes up to
    NEEDED_MAX * (log2(number of units) + 1) tries. The unit is known to differ after none of them.
    """
    if not (yield tuple(run_ids)):
        return ()
    kept: tuple[str, ...] = ()
    rest = tuple(run_ids)
    while len(kept) < NEEDED_MAX:
        too_few, enough = 0, len(rest)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if (yield (*kept, *rest[-middle:])):
                enough = middle
            else:
                too_few = middle
        kept, rest = (*kept, rest[-enough]), rest[len(rest) - enough + 1 :]
        if not rest or (yield kept):
            return kept
    return (*kept, *rest)


def find_needed(
    run_ids: Sequence[str], judge: Callable[[Sequence[str]], Verdict], alone: Verdict | None = None
) -> Verdict:
    """The verdict of a unit after the few earlier units that it needs.

    `judge` replays the unit after some units, each time in a new process; `alone`: the verdict after none, if it is
    known. If all units are not enough, returns the verdict after all; if none is needed, the verdict after none.
    """

    def look(units: Sequence[str]) -> Verdict:
        verdict = judge(units)
        say(f"after {len(units)} of {len(run_ids)} earlier units: {verdict['verdict']}")
        return verdict

    alone = alone or look(())
    if alone["verdict"] not in {"diverged", "incomplete"} or not run_ids:
        return alone
    tries = iter_tries(run_ids)
    found: dict[tuple[str, ...], Verdict] = {}
    units = next(tries)
    while True:
        found[units] = look(units)
        try:
            units = tries.send(found[units]["verdict"] == "identical")
        except StopIteration as end:
            needed: tuple[str, ...] = end.value
            return mark_needed(found[needed]) if needed else found[tuple(run_ids)]


def is_better(after: Verdict, than: Verdict) -> bool:
    """Whether a verdict after earlier units is nearer to identical: the unit got further, or differs in less."""
    if "identical" in (after["verdict"], than["verdict"]):
        return than["verdict"] != "identical"
    return after["verdict"] == "diverged" and _measure(after) > _measure(than)


def _measure(verdict: Verdict) -> tuple[int, int]:
    return verdict["counts"].get("served", 0), -len(verdict["divergences"])


def mark_needed(verdict: Verdict) -> Verdict:
    """The verdict, which states that the unit needs the units that were replayed before it."""
    return {**verdict, "warm_up": {**verdict["warm_up"], "is_needed": True}}
