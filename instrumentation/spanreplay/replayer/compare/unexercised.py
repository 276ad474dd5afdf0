"""Code that changed since the recording and didn't run, because its calls were served: a verdict must not hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids
from spanreplay.runtime.calls.bodies import BODY, is_changed

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.runtime.calls.open_call import Crossing

BOUNDARIES_MAX: Final = 1_000


class Unexercised:
    """The boundaries whose function has changed since the recording. The session's lock guards it."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def note(self, crossing: Crossing, call: CallRecord) -> None:
        """Note a served call whose function body has changed: it doesn't run."""
        if not is_changed(call.meta.get(BODY), crossing.spec.meta.get(BODY)):
            return
        row = self._found.get(crossing.boundary)
        if row is None and len(self._found) < BOUNDARIES_MAX:
            place = ids.describe_function(ids.unwrap(crossing.spec.body))
            row = self._found[crossing.boundary] = {"boundary": crossing.boundary, "code": place, "calls": 0}
        if row is not None:
            row["calls"] += 1

    def describe(self) -> list[dict[str, Any]]:
        """Return the form of schema divergence/1: boundary, current place of its function, number of served calls."""
        return list(self._found.values())
