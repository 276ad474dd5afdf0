"""Values that a recording hides: a replay restores them for the agent if the redaction key is available.

Otherwise the agent gets the tokens and may behave differently: the calls and fields that hid a value are kept for the
verdict. Only the agent gets the true values; requests, outputs and verdicts are redacted as always. To redact them as
when recorded, the redactor is shown each response that the agent gets, as it was when they were recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spanreplay.model.code_state import AT, ENTRIES
from spanreplay.model.json_text import load
from spanreplay.model.lane_names import name_number
from spanreplay.redact.sealed_values import SEALED, TOKEN_TEXT, Opened, open_sealed
from spanreplay.replayer.divergence import Cause, Divergence
from spanreplay.replayer.foreign_tokens import ForeignTokens
from spanreplay.runtime.calls.printed import MEMBER
from spanreplay.runtime.calls.spec import Revealed

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.run import Run

__all__ = ["REDACTION", "Hidden", "Withheld", "name_fields"]

REDACTION: Final = "redaction"
"""The kind of a cause."""
WITHHELD_MAX: Final = 200
FIELDS_MAX: Final = 20
"""The maximum number of fields kept per call."""
_NAMED_MAX: Final = 3
_ENCODED: Final = "an encoded text"
_PIECE_CHARACTERS_MIN: Final = 3
"""As `blame.FRAGMENT_CHARACTERS_MIN`: a fragment inside a token came from no other text of that call."""
_USE_KEY: Final = "to give the agent the true values, set SPANREPLAY_REDACT_KEY to the key file of the recording"
_HIDE_LESS: Final = (
    "the program may compute with a text that this export hides: replay the original, or hide fewer texts"
)
_RECORD_AGAIN: Final = "the recording holds no true values: record it again, with SPANREPLAY_SEAL=true (the default)"


class Withheld(NamedTuple):
    """A field of a served call in which the agent was given a token."""

    seq: int
    """The Lamport clock value of the call in the replay."""
    call: int
    boundary: str
    field: str
    token: str


class Hidden:
    """The values that the served calls hide. The session's lock guards it."""

    def __init__(self, recording: Recording) -> None:
        self._hides = any("rdx-" in call.response or SEALED in call.meta for call in recording.calls)
        self.foreign = ForeignTokens(recording)
        self.withheld: list[Withheld] = []
        """The fields in which the agent got tokens, in this process and in those that have ended."""
        self.unreadable: dict[str, None] = {}
        """Random sources whose recorded values are sealed with another key: the agent got new ones."""

    def reveal(self, crossing: Crossing, call: CallRecord) -> CallRecord:
        """Return the call to serve, with its hidden values if they are available."""
        redactor = crossing.run.redactor
        opened = _open(redactor, call)
        served = call.response if opened is None else opened.response
        # If the redactor were shown a token here, it would no longer notice the agent sending it
        if self._hides and (opened is not None or "rdx-" not in served):
            _show_again(crossing.run, served)
        if opened is None:
            redactor.recall(call.response)
            self._note(call, crossing.seq)
            return call
        crossing.revealed = Revealed(opened.response, call.response, opened.printed, redactor)
        return replace(call, response=opened.response)

    def open_response(self, redactor: RunRedactor, call: CallRecord) -> str:
        """Return a call's response as served, for uses before serving: files, the length of a body."""
        opened = _open(redactor, call)
        if opened is None:
            self._note(call, 0)
        return call.response if opened is None else opened.response

    def _note(self, call: CallRecord, seq: int) -> None:
        known = {(each.call, each.token) for each in self.withheld}
        fields = name_fields(call.response)
        if not fields and SEALED in call.meta:
            fields = [(_ENCODED, "")]  # base64 of a text with a token
        for field, token in fields:
            if len(self.withheld) < WITHHELD_MAX and (call.number, token) not in known:
                self.withheld.append(Withheld(seq, call.number, call.boundary, field, token))

    def explain(self, divergence: Divergence, changed: Sequence[str], fingerprint: str) -> Iterator[Cause]:
        """Yield the tokens that may have caused a divergence because they replaced values.

        `changed` are the new texts that differ; `fingerprint` is that of the key on this machine.
        """
        for diff in divergence.diff if self._is_keyed_otherwise(fingerprint) else ():
            if "rdx-" in str(diff.recorded) and "rdx-" in str(diff.now):
                yield Cause(REDACTION, f"{diff.path} holds tokens of two redaction keys", "value", diff.path)
                break
        before = [each for each in self.withheld if not divergence.seq or each.seq <= divergence.seq]
        recorded = " ".join(str(diff.recorded) for diff in divergence.diff)
        texts = [text for text in changed if len(text) >= _PIECE_CHARACTERS_MIN]
        shown = [
            each
            for each in before
            if each.token
            and each.token not in recorded
            and any(each.token in text or text.lower() in each.token for text in texts)
        ]
        if before:
            evidence = f"the agent was given tokens for what redaction hides: {_list_fields(shown or before)}"
            yield Cause(REDACTION, evidence, "value" if shown else "beside", str((shown or before)[-1].seq))
        if self.unreadable:
            evidence = f"{', '.join(self.unreadable)} gave new values: the recorded ones are sealed with another key"
            yield Cause(REDACTION, evidence, "beside", next(iter(self.unreadable)))

    def remedy(self, fingerprint: str) -> str:
        """Return the user's remedy to give the agent the true values."""
        if self.foreign.is_anonymous:
            return _HIDE_LESS
        return _USE_KEY if self._is_keyed_otherwise(fingerprint) else _RECORD_AGAIN

    def _is_keyed_otherwise(self, fingerprint: str) -> bool:
        return self.foreign.is_foreign(fingerprint)


def _list_fields(withheld: Sequence[Withheld]) -> str:
    """List some fields, those of the latest call first, and the number of the others."""
    calls: dict[int, list[Withheld]] = {}
    for each in withheld:
        calls.setdefault(each.call, []).append(each)
    parts: list[str] = []
    named = 0
    for call, fields in reversed(calls.items()):
        here = [each.field for each in fields[: _NAMED_MAX - named]]
        named += len(here)
        parts += [f"{', '.join(here)} in {name_number(call)} ({fields[0].boundary})"] if here else []
    more = len(withheld) - named
    return "; ".join(parts) + (f" and {more} more" if more else "")


def _open(redactor: RunRedactor, call: CallRecord) -> Opened | None:
    sealed = call.meta.get(SEALED)
    return open_sealed(redactor, sealed, call.response, call.meta.get(MEMBER)) if isinstance(sealed, str) else None


def _show_again(run: Run, response: str) -> None:
    """Redact a response as its seam did when recorded, so that the redactor learns from it."""
    redactor = run.redactor
    try:
        value: Any = load(response)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    if "chunks" in value:
        from spanreplay.runtime.wire.binary import HoldsSecret
        from spanreplay.runtime.wire.http_reply import decode_reply
        from spanreplay.runtime.wire.http_wire import redact_reply

        with contextlib.suppress(HoldsSecret, ValueError):
            redact_reply(run, decode_reply(response))
            return
    if isinstance(value.get("items"), list):
        redactor.items(value["items"])
    elif isinstance(value.get("messages"), list):
        heard = [each[2] for each in value["messages"] if isinstance(each, list) and each[:1] == ["got"]]
        redactor.messages([text for text in heard if isinstance(text, str)])
    redactor.value(value)


def name_fields(response: str) -> list[tuple[str, str]]:
    """Return (field, token) of the texts that contain one: `body.access_token`, `headers.set-cookie`, `value[0]`."""
    try:
        value: Any = load(response)
    except ValueError:
        return []
    found: list[tuple[str, str]] = []
    if isinstance(value, dict) and isinstance(value.get("chunks"), list):
        whole = "".join(c[1] for c in value["chunks"] if isinstance(c, list) and len(c) > 1 and isinstance(c[1], str))
        try:
            body: Any = load(whole)
        except ValueError:
            body = whole
        value = {**value, "body": body, "headers": _by_name(value.get("headers"))}
        del value["chunks"]
    state = value.get("value") if isinstance(value, dict) else None
    if isinstance(state, dict) and isinstance(state.get(ENTRIES), dict) and AT in state:
        value = {f"the content of {state[AT]}{below and '/'}{below}": each for below, each in state[ENTRIES].items()}
    _collect("", value, found)
    return found[:FIELDS_MAX]


def _by_name(headers: Any) -> Any:
    if not isinstance(headers, Sequence) or not all(isinstance(h, Sequence) and len(h) == 2 for h in headers):
        return headers
    return {str(name).lower(): value for name, value in headers}


def _collect(path: str, value: Any, found: list[tuple[str, str]]) -> None:
    if len(found) >= FIELDS_MAX:
        return
    if isinstance(value, str):
        match = TOKEN_TEXT.search(value)
        if match is not None:
            found.append((path or "$", match[0]))
    elif isinstance(value, dict):
        for name, member in value.items():
            _collect(f"{path}.{name}".lstrip("."), member, found)
    elif isinstance(value, list):
        for number, member in enumerate(value):
            _collect(f"{path}[{number}]", member, found)
