"""Code that didn't run because its calls were served: a verdict must not hide that it changed, or what it left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids
from spanreplay.model.call import Kind
from spanreplay.replayer.divergence import STRENGTHS
from spanreplay.runtime.calls.bodies import BODY, is_changed

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.runtime.calls.open_call import Crossing

BOUNDARIES_MAX: Final = 1_000
_NAMED_MAX: Final = 3
_OF_VALUES: Final = ("changed_call", "output_changed")
"""Kinds of differences in what the program has computed."""


class Unexercised:
    """The boundaries whose function has changed since the recording. The session's lock guards it."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._inside: dict[str, dict[str, Any]] = {}

    def note(self, crossing: Crossing, call: CallRecord, covered: Iterable[CallRecord] = ()) -> None:
        """Note a served call whose body doesn't run: it has changed, or asked models (`covered`: the calls inside)."""
        self._note_inside(crossing.boundary, covered)
        if not is_changed(call.meta.get(BODY), crossing.spec.meta.get(BODY)):
            return
        row = self._found.get(crossing.boundary)
        if row is None and len(self._found) < BOUNDARIES_MAX:
            place = ids.describe_function(ids.unwrap(crossing.spec.body))
            row = self._found[crossing.boundary] = {"boundary": crossing.boundary, "code": place, "calls": 0}
        if row is not None:
            row["calls"] += 1

    def _note_inside(self, boundary: str, covered: Iterable[CallRecord]) -> None:
        asked = {call.boundary for call in covered if call.kind == Kind.LLM.value}
        if not asked or (boundary not in self._inside and len(self._inside) >= BOUNDARIES_MAX):
            return
        row = self._inside.setdefault(boundary, {"boundary": boundary, "calls": 0, "inside": []})
        row["calls"] += 1
        row["inside"] = sorted({*row["inside"], *asked})

    def describe(self, *, has_changed: bool) -> list[dict[str, Any]]:
        """Return the form of schema divergence/1: boundary, current place of its function, number of served calls.

        `has_changed`: whether any code has; then also the calls inside which models were asked.
        """
        inside = self._inside.values() if has_changed else ()
        return [*self._found.values(), *(row for row in inside if row["boundary"] not in self._found)]


def hint_at_bodies(
    divergences: Sequence[Divergence], calls: Iterable[CallRecord], served: Collection[int]
) -> list[Divergence]:
    """Return the divergences; if the first has no cause, its hint names the tools that ran when recorded.

    `served`: the Lamport clock values of the calls that the replay has made. A body may have changed a global or an
    attribute that the program reads elsewhere: only its result, and what the framework hands to it, is recorded.
    """
    if not divergences or divergences[0].kind not in _OF_VALUES or _has_cause(divergences[0]):
        return list(divergences)
    first, *rest = divergences
    bodies = (c for c in calls if c.kind == Kind.TOOL.value and BODY in c.meta and c.seq in served)
    names = list(dict.fromkeys(call.boundary for call in bodies if not first.call or call.number < first.call))
    if not names:
        return list(divergences)
    shown = ", ".join(names[:_NAMED_MAX]) + (", …" if len(names) > _NAMED_MAX else "")
    hint = (
        f"tools do not run in a replay ({shown}): what they changed in memory, besides their results, is missing here; "
        "--rerun tool runs their code"
    )
    return [replace(first, hint="; ".join(filter(None, (first.hint, hint)))), *rest]


def _has_cause(divergence: Divergence) -> bool:
    """Whether more is known than that something else differs, too."""
    return any(cause.strength != STRENGTHS[-1] for cause in divergence.causes)
