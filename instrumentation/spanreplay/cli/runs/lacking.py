"""Judge units of a suite again that diverge alone: after the earlier units whose state they may lack.

Units that differ alike mostly lack the same. So the earlier units that are needed are searched for one unit of each
group, and for a second and a third if all earlier units don't help the first: it may differ for a reason of its own.
Those that are found are tried for the others, and then all earlier ones as far as the limit goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias

from spanreplay.cli.runs.needed import NEEDED_MAX, is_better, iter_tries, mark_needed
from spanreplay.cli.runs.units import Unit
from spanreplay.cli.terminal import say
from spanreplay.model.call import RootRecord
from spanreplay.report.shape import Verdict
from spanreplay.report.suite import group
from spanreplay.report.words import plural

__all__ = ["FIRSTS_MAX", "GROUPS_MAX", "REPLAYS_MAX", "Earlier", "Judge", "judge_lacking"]

GROUPS_MAX: Final = 10
"""For how many groups of units, the largest first, the earlier units that they need are searched."""
FIRSTS_MAX: Final = 3
"""For how many units of a group, if all earlier units help none of them."""
REPLAYS_MAX: Final = 20_000
"""How many earlier units are replayed where units are tried after all of theirs."""

Earlier: TypeAlias = Mapping[str, Sequence[RootRecord]]
"""Run id of a unit → the units of its process that came before it and are here, in order."""
Judge: TypeAlias = Callable[[Mapping[str, Sequence[str]]], Mapping[str, Verdict]]
"""Replays units, each after the given earlier ones; run ids."""
_Tries: TypeAlias = Generator[tuple[str, ...], bool, tuple[str, ...]]


def judge_lacking(units: Sequence[Unit], alone: Sequence[Verdict], before: Earlier, judge: Judge) -> list[Verdict]:
    """The verdicts of a suite: that after earlier units in place of the one alone, where the unit got further."""
    served = [each for each in alone if "rerun" not in each["counts"]]  # what a tool asks is known to differ
    diverged = [each for each in served if each["verdict"] == "diverged" and before.get(str(each["run_id"]))]
    if not diverged:
        return list(alone)
    say(
        f"{plural(len(diverged), 'unit')} diverged alone: is it for what earlier units left in memory? "
        "(--warm 0: don't ask)"
    )
    search = _Search(units, {str(each["run_id"]): each for each in diverged}, before, judge)
    alike = [each.runs for each in group(diverged)[:GROUPS_MAX]]
    likely: dict[str, tuple[str, ...]] = {}
    for turn in range(FIRSTS_MAX):
        firsts = {runs[at]: runs for runs in alike for at in _order(len(runs))[turn : turn + 1]}
        needed = search.find({run: search.iter_ways(run) for run in firsts})
        for first, ids in needed.items():
            likely |= {run: search.find_like(first, ids, run) for run in firsts[first] if run != first}
            alike.remove(firsts[first])
    search.insist({run: ids for run, ids in likely.items() if ids})
    search.insist(_limit({run: _ids(before[run]) for run in likely}))
    return [search.best.get(str(each["run_id"]), each) for each in alone]


class _Search:
    """Tries units after earlier ones, many at a time, and keeps the best verdict of each."""

    def __init__(self, units: Sequence[Unit], alone: Mapping[str, Verdict], before: Earlier, judge: Judge) -> None:
        self.best = dict(alone)
        self._whose = {unit.run_id: _whose(unit.root) for unit in units}
        self._before = before
        self._judge = judge

    def iter_ways(self, run: str) -> _Tries:
        """Like `iter_tries`, after a try of the earlier units of the same session, or of the same user."""
        own = self._find_own(run)
        if own and len(own) < len(self._before[run]) and (yield own):
            return own
        return (yield from iter_tries(_ids(self._before[run])))

    def find(self, ways: Mapping[str, _Tries]) -> dict[str, tuple[str, ...]]:
        """Run id → the earlier units that it needs; all, if it differs after these, but later than alone."""
        needed: dict[str, tuple[str, ...]] = {}
        tries = {run: next(way) for run, way in ways.items()}
        seen: dict[tuple[str, tuple[str, ...]], Verdict] = {}
        while tries:
            verdicts = self._judge(tries)
            for run, ids in list(tries.items()):
                seen[run, ids] = verdicts[run]
                try:
                    tries[run] = ways[run].send(verdicts[run]["verdict"] == "identical")
                except StopIteration as end:
                    del tries[run]
                    if end.value:
                        needed[run], verdict = end.value, seen[run, end.value]
                        self.best[run] = verdict if end.value == self._find_own(run) else mark_needed(verdict)
                    elif self._keep(run, verdicts[run]):
                        needed[run] = ids
        return needed

    def find_like(self, first: str, needed: Sequence[str], run: str) -> tuple[str, ...]:
        """The earlier units that a unit may need, because `first`, which differed in the same way, needs `needed`."""
        if tuple(needed) == self._find_own(first):
            return self._find_own(run)
        here = set(_ids(self._before[run]))
        return tuple(each for each in needed if each in here) if len(needed) <= NEEDED_MAX else ()

    def insist(self, tries: Mapping[str, tuple[str, ...]]) -> None:
        """Replay units after these earlier ones, unless they are identical by now."""
        left = {run: ids for run, ids in tries.items() if self.best[run]["verdict"] != "identical"}
        verdicts = self._judge(left) if left else {}
        for run in left:
            self._keep(run, verdicts[run])

    def _keep(self, run: str, verdict: Verdict) -> bool:
        """Whether this verdict is the best one of its unit so far."""
        is_kept = is_better(verdict, self.best[run])
        if is_kept:
            self.best[run] = verdict
        return is_kept

    def _find_own(self, run: str) -> tuple[str, ...]:
        """The earlier units of a unit's session, or of its user if it names no session."""
        whose = self._whose[run]
        return tuple(each.run_id for each in self._before[run] if any(whose) and _whose(each) == whose)


def _order(count: int) -> list[int]:
    """The units of a group for which others are searched: the first, the last, one between them."""
    return list(dict.fromkeys((0, count - 1, count // 2)))


def _whose(root: RootRecord) -> tuple[str, str]:
    return (root.session_id, "") if root.session_id else ("", root.user_id)


def _ids(roots: Sequence[RootRecord]) -> tuple[str, ...]:
    return tuple(root.run_id for root in roots)


def _limit(tries: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """As many of the tries as replay no more than REPLAYS_MAX earlier units together, the shortest first."""
    left, found = REPLAYS_MAX, {}
    for run, ids in sorted(tries.items(), key=lambda each: len(each[1])):
        left -= len(ids)
        if left < 0:
            break
        found[run] = ids
    return found
