"""The description of a call before it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spanreplay.model import config
from spanreplay.runtime.order.lock_order import STDOUT

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor


from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanreplay.runtime.process.uses import Uses


REPLACED_MEMBERS: Final = 3
"""How many members a row of printed text has if standard output is not replaced."""
ITEM: Final = 4
"""The member of a row that is an item of a queue (`passed`)."""


@dataclass(slots=True)
class Spec:
    """The description of a call before it happens. `request` and `key_fields` are redacted already.

    If the request implies the key (`leafkey.is_derivable`), `key_fields` is not used and may be None.
    """

    kind: str
    name: str
    effect: str
    keyspec: str
    key_fields: Mapping[str, Any] | None
    request: str
    call_id: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    redactions: dict[str, int] = field(default_factory=dict)
    hole: str = ""
    """Why this call can't be replayed, if that is known from the start."""
    body: Any = None
    """The function that does the work, named as the place if no agent code is on the stack."""
    amend: Callable[[Any], Spec] | None = None
    """Returns the call with patches applied to its request; None if the request can't be changed on its way."""
    prints: bool = False
    """Whether the body's standard output is part of its effect."""
    part: int = 0
    """How many items of a generator have come."""
    printed: Printed | None = None
    """The body's printed output so far."""
    live: Callable[[], Any] | None = None
    """Runs instead of the body, if a patch changed its arguments."""
    raw: Any = None
    """The response as JSON before its redaction, if parts of it may be hidden: it is sealed, never written."""
    raw_printed: list[list[Any]] | None = None
    """The body's printed output before its redaction, likewise."""
    is_contained: bool = False
    """Whether its effect stays in a replay's own files, so that a fork without effects may make it."""
    uses: Uses | None = None
    """In a replay: the parts of the recorded environment that the request would use if it were made live."""


class Revealed(NamedTuple):
    """A replay's response in place of one with tokens, and the text that the replay records for it."""

    response: str
    recorded: str
    printed: Any
    redactor: RunRedactor

    def hide(self, response: str) -> str:
        """The text that the replay records for a served response: the recorded one, unless a plan changed it."""
        return self.recorded if response == self.response else self.redactor.json_text(response)


class Printed:
    """The printed output of one call so far."""

    __slots__ = ("_run", "characters", "passed", "rows")

    def __init__(self) -> None:
        self._run = 0
        self.rows: list[list[Any]] = []
        self.characters = self.passed = 0

    def add(self, crossing: Any, text: str, *, is_replaced: bool) -> None:
        """Add a text that the body has written."""
        self.characters += len(text)
        if self.characters > config.PRINTED_CHARACTERS_MAX:
            crossing.spec.hole = crossing.spec.hole or f"more than {config.PRINTED_CHARACTERS_MAX} characters printed"
            return
        at, before = crossing.spec.part, self._run
        self._run = crossing.run.lock_order.count_runs(STDOUT)
        is_new = not self.rows or self._run != before or is_replaced != (len(self.rows[-1]) > REPLACED_MEMBERS)
        is_new = is_new or len(self.rows[-1]) > ITEM
        if crossing.opened_in >= 0:  # a coroutine: each row is a part of its own
            is_new = is_new or not crossing.run.is_now(crossing.clocks[-1])
            at = crossing.mark_printed() if is_new else at
        elif not is_new:
            is_new = self.rows[-1][2] != at
        if not is_new:
            self.rows[-1][0] += text
            self.rows[-1][1] += 1
            return
        self.rows.append([text, 1, at, 1] if is_replaced else [text, 1, at])

    def add_item(self, crossing: Any, item: list[Any], characters: int) -> None:
        """Add an item that the body has put into a queue."""
        self.passed += characters
        if self.passed > config.BODY_BYTES_MAX:
            hole = f"more than {config.BODY_BYTES_MAX} characters put into queues"
            crossing.spec.hole = crossing.spec.hole or hole
        else:
            at = crossing.mark_printed() if crossing.opened_in >= 0 else crossing.spec.part
            self.rows.append(["", 0, at, 1, item])
