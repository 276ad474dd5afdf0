"""Exceptions as JSON, also those of which a part has no codec: an argument is then replaced by what it prints.

A library's exception may hold a connection (`urllib3.exceptions.ConnectTimeoutError`) or be raised from one that does.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay import codec
from spanreplay.model.errors import SpanreplayError, Unserializable

__all__ = ["NOT_REBUILT", "Shown", "decode", "encode"]

NOT_REBUILT: Final = (SpanreplayError, ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What decoding raises for another program's or a malformed recording."""
_SHOWN: Final = "shown"
"""Member of an encoded exception: position of an argument that has no codec → its `repr` and `str`."""


class Shown:
    """In place of a value that can't be rebuilt; prints like it."""

    def __init__(self, described: str, text: str) -> None:
        self._described = described
        self._text = text

    def __repr__(self) -> str:
        return self._described

    def __str__(self) -> str:
        return self._text


def encode(exc: BaseException) -> dict[str, Any]:
    """An exception as JSON. Raises: Unserializable if its class can't be imported by path."""
    try:
        return codec.encode_exception(exc)
    except Unserializable as refused:
        try:
            twin, shown = _make_twin(exc)
        except Exception:  # noqa: BLE001 -- of a class that can't be made from its args, or of a `repr`
            raise refused from None
        return {**codec.encode_exception(twin), **({_SHOWN: shown} if shown else {})}


def decode(encoded: Any) -> BaseException:
    """Rebuild the exception of `encode`, without stacks. Raises: one of NOT_REBUILT."""
    exc = codec.decode_exception(encoded)
    shown = encoded.get(_SHOWN)
    if shown:
        args = list(exc.args)
        for place, (described, text) in shown.items():
            args[int(place)] = Shown(str(described), str(text))
        exc.args = tuple(args)
    return exc


def _make_twin(exc: BaseException) -> tuple[BaseException, dict[str, list[str]]]:
    """The same exception with texts in place of arguments that have no codec, and without its cause."""
    args, shown = list(exc.args), {}
    for place, arg in enumerate(args):
        try:
            codec.encode(arg)
        except Unserializable:
            shown[str(place)] = [repr(arg), str(arg)]
            args[place] = repr(arg)
    cls = type(exc)
    twin: BaseException = cls.__new__(cls, *args)
    if twin.args != tuple(args):
        twin.args = tuple(args)
    vars(twin).update(vars(exc))
    twin.__suppress_context__ = exc.__suppress_context__
    return twin, shown
