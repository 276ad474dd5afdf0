"""Memory addresses in texts: `repr` shows them for objects without another name, `<Agent object at 0x7f84429f4a40>`.

They differ in each process and mean nothing, so texts that differ only in addresses count as the same. A request with
different addresses matches the recorded one; outputs and files are compared without them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spanreplay.replayer.recorded_words import change_texts

if TYPE_CHECKING:
    from spanreplay.runtime.calls.spec import Spec

_MARK: Final = " at 0x"
_ADDRESS: Final = re.compile(r"(?<= at )0x[0-9a-fA-F]{6,16}(?![0-9a-zA-Z])")
_HIDDEN: Final = "0x…"


def hide_addresses(text: str) -> str:
    """Replace each address in a text with the same word."""
    return _ADDRESS.sub(_HIDDEN, text) if _MARK in text else text


def is_same_text(then: str, now: str) -> bool:
    """Whether two texts differ at most in addresses."""
    return then == now or (_MARK in then and _MARK in now and hide_addresses(then) == hide_addresses(now))


def with_addresses_of(then: str, now: str) -> str:
    """Replace the addresses in `now` with those of `then`, one by one, so that the first real difference shows."""
    if _MARK not in now:
        return now
    recorded = iter(_ADDRESS.findall(then))
    return _ADDRESS.sub(lambda match: next(recorded, match.group()), now)


def with_recorded_addresses(spec: Spec, recorded: str) -> Spec:
    """Return a call's description with a recorded request's addresses; the same object if more than these differ.

    `recorded` is the request as JSON.
    """
    request = spec.request
    if request == recorded or not is_same_text(recorded, request):
        return spec
    pairs = dict(zip(_ADDRESS.findall(request), _ADDRESS.findall(recorded), strict=True))

    def change(text: str) -> str:
        return _ADDRESS.sub(lambda match: pairs.get(match.group(), match.group()), text) if _MARK in text else text

    fields = spec.key_fields
    return replace(spec, request=recorded, key_fields=None if fields is None else change_texts(fields, change))
