"""Code that changed since the recording and did not run, because its calls were served: a verdict must not hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids
from spanreplay.runtime.calls.bodies import BODY, is_changed

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.runtime.calls.open_call import Crossing

BOUNDARIES_MAX: Final = 1_000


class Unexercised:
    """The boundaries whose function is another than when they were recorded. The session's lock guards it."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def note(self, crossing: Crossing, call: CallRecord) -> None:
        """A call is served, and its body does not run."""
        if not is_changed(call.meta.get(BODY), crossing.spec.meta.get(BODY)):
            return
        row = self._found.get(crossing.boundary)
        if row is None and len(self._found) < BOUNDARIES_MAX:
            place = ids.describe_function(ids.unwrap(crossing.spec.body))
            row = self._found[crossing.boundary] = {"boundary": crossing.boundary, "code": place, "calls": 0}
        if row is not None:
            row["calls"] += 1

    def describe(self) -> list[dict[str, Any]]:
        """The form of schema divergence/1: boundary, where its function is now, how many of its calls were served."""
        return list(self._found.values())
