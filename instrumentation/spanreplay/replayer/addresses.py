"""Memory addresses in texts: what `repr` shows of an object that has no other name, `<Agent object at 0x7f84429f4a40>`.

They differ in each process and mean nothing, so texts that differ in nothing else are the same. A request that names
them is taken for the recorded one; an output or a file is compared without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spanreplay.runtime.calls.spec import Spec

_MARK: Final = " at 0x"
_ADDRESS: Final = re.compile(r"(?<= at )0x[0-9a-fA-F]{6,16}(?![0-9a-zA-Z])")
_HIDDEN: Final = "0x…"


def hide_addresses(text: str) -> str:
    """A text with one and the same word in place of each address."""
    return _ADDRESS.sub(_HIDDEN, text) if _MARK in text else text


def is_same_text(then: str, now: str) -> bool:
    """Whether two texts differ in addresses at most."""
    return then == now or (_MARK in then and _MARK in now and hide_addresses(then) == hide_addresses(now))


def with_addresses_of(then: str, now: str) -> str:
    """The text of now with the addresses of the other one, one for one, so that the first real difference is seen."""
    if _MARK not in now:
        return now
    recorded = iter(_ADDRESS.findall(then))
    return _ADDRESS.sub(lambda match: next(recorded, match.group()), now)


def with_recorded_addresses(spec: Spec, recorded: str) -> Spec:
    """A call's description with the addresses of a recorded request; the same object if more than these differ.

    `recorded` is the request as JSON.
    """
    request = spec.request
    if request == recorded or not is_same_text(recorded, request):
        return spec
    pairs = dict(zip(_ADDRESS.findall(request), _ADDRESS.findall(recorded), strict=True))
    fields = spec.key_fields
    return replace(spec, request=recorded, key_fields=None if fields is None else _renamed(fields, pairs))


def _renamed(value: Any, pairs: Mapping[str, str]) -> Any:
    """A JSON value with other addresses in all its texts; lists and objects are copied."""
    if isinstance(value, str):
        return _ADDRESS.sub(lambda m: pairs.get(m.group(), m.group()), value) if _MARK in value else value
    if isinstance(value, Mapping):
        return {_renamed(str(name), pairs): _renamed(each, pairs) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(each, pairs) for each in value]
    return value
