"""Finds out for whom a unit works, and to which trace it belongs, from its request or message.

The first source that names a user wins: the SPANREPLAY_WHO callback, the SPANREPLAY_USER_HEADER headers, W3C baggage.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final

from spanreplay.model import config, guard
from spanreplay.model.attributes import UNIT_TRACE
from spanreplay.redact.names import Strength, secret_name
from spanreplay.runtime.run import Run
from spanreplay.runtime.who import SESSION, USER
from spanreplay.units import factory
from spanreplay.units.stated import UNIT

__all__ = ["find_names", "look_at_caller"]

logger = logging.getLogger(__name__)

_BAGGAGE: Final = "baggage"
_TRACE_PARENT: Final = "traceparent"
_SETTINGS: Final = {USER: "SPANREPLAY_USER_HEADER", SESSION: "SPANREPLAY_SESSION_HEADER"}
_HEADERS: Final = "headers"

Callback = Callable[[Mapping[str, Any]], object]


def find_names() -> tuple[str, ...]:
    """Return the lowercase names of the headers that may name a user, a session or a trace."""
    return (_BAGGAGE, _TRACE_PARENT, *_read_names(USER), *_read_names(SESSION))


def look_at_caller(run: Run, headers: Iterable[Iterable[bytes]], given: Callable[[], Mapping[str, Any]]) -> None:
    """Read user, session and trace from a request or message.

    `headers` are all of its headers, or those of `find_names`; `given` returns the unit's input as it is recorded.
    """
    found: dict[str, list[str]] = {name: [] for name in find_names()}
    for name, value in headers:
        known = found.get(bytes(name).lower().decode("latin-1"))
        if known is not None:
            known.append(bytes(value).decode("latin-1"))
    callback = _find_callback(config.read_setting("SPANREPLAY_WHO"))
    if callback is not None:
        with factory.outside_units():  # its reads are not inputs of the unit: a replay doesn't call it
            guard.guarded("SPANREPLAY_WHO", _ask, run, callback, given)
    for what in _SETTINGS:
        named = next((found[name][0] for name in _read_names(what) if found[name]), "")
        run.who.look_at("header", {what: named})
    if found[_BAGGAGE]:
        from opentelemetry.baggage.propagation import W3CBaggagePropagator
        from opentelemetry.context import Context

        carried = {_BAGGAGE: ",".join(found[_BAGGAGE])}
        run.who.look_at_baggage(W3CBaggagePropagator().extract(carried, context=Context()))
    if len(found[_TRACE_PARENT]) == 1:  # several headers are all invalid (W3C Trace Context, 4.2)
        _note_trace(run, found[_TRACE_PARENT][0])


def _read_names(what: str) -> tuple[str, ...]:
    return _split(_SETTINGS[what], config.read_setting(_SETTINGS[what]))


@cache
def _split(setting: str, text: str) -> tuple[str, ...]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    secret = [name for name in names if secret_name(name) is Strength.STRONG]
    if secret:
        logger.warning("%s is ignored: the header %s holds a credential; name one that holds an id", setting, secret[0])
    return tuple(name for name in names if name not in secret)


@cache
def _find_callback(place: str) -> Callback | None:
    """Return the function at `module:function`; None if there is none, with one warning."""
    if not place:
        return None
    module, _, name = place.partition(":")
    try:
        with factory.outside_units():
            loaded = sys.modules.get(module) or importlib.import_module(module)
        found: Any = loaded
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as exc:  # noqa: BLE001 -- importing runs the user's code
        logger.warning(
            "SPANREPLAY_WHO is ignored: %r can't be had (%s); write module:function", place, type(exc).__name__
        )
        return None
    if not callable(found):
        logger.warning("SPANREPLAY_WHO is ignored: %r is not a function; write module:function", place)
        return None
    return partial(found)


def _ask(run: Run, callback: Callback, given: Callable[[], Mapping[str, Any]]) -> None:
    told = dict(given())
    listed = told.get(_HEADERS)
    if isinstance(listed, list):  # one mapping per header, in order: the first of a name wins
        told[_HEADERS] = {name: value for each in reversed(listed) for name, value in each.items()}
    found = callback(told)
    named = found if isinstance(found, Mapping) else {USER: found}
    run.who.look_at("callback", {what: named.get(what) for what in (USER, SESSION)})


def _note_trace(run: Run, trace_parent: str) -> None:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried = TraceContextTextMapPropagator().extract({_TRACE_PARENT: trace_parent}, context=Context())
    caller = trace.get_current_span(carried).get_span_context()
    if caller.is_valid:
        run.environment[UNIT][UNIT_TRACE] = f"{caller.trace_id:032x}"
