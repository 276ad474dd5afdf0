"""Checks of single spans; pure. Each yields what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.recording.conformance.exported import PREFIX, ExportedRun, ExportedSpan
from spanreplay.recording.conformance.finding import INTEGERS, NAMES, TEXTS, Finding, parse, shown
from spanreplay.redact.engine import Redactor
from spanreplay.redact.tokens import key_id_of

_KINDS: Final = tuple(kind.value for kind in Kind)
_EFFECTS: Final = tuple(effect.value for effect in Effect)
_ENDED: Final = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.OPEN)
"""Tuples: an attribute may be a list, which can't be looked up in a set."""
_NO_KEY: Final = bytes(32)
_OBJECTS: Final = (names.META, names.REDACTIONS, names.DIGESTS, names.ENV, names.MANIFEST)


def _at(each: ExportedSpan, attribute: str, what: str) -> Finding:
    return Finding(each.place, attribute, what)


def _value(each: ExportedSpan, attribute: str) -> str:
    """An attribute's value in a message."""
    return shown(each.attributes[attribute]) if attribute in each.attributes else "missing"


def check_schema(run: ExportedRun) -> Iterator[Finding]:
    for each in run.spans:
        if each.attributes.get(names.SCHEMA) != names.SCHEMA_VERSION:
            yield _at(each, names.SCHEMA, f"{_value(each, names.SCHEMA)}, expected '{names.SCHEMA_VERSION}'")


def check_names(run: ExportedRun) -> Iterator[Finding]:
    for each in run.spans:
        for name in each.attributes:
            if name.startswith(PREFIX) and name not in NAMES:
                yield _at(each, name, "is not in the contract")


def check_types(run: ExportedRun) -> Iterator[Finding]:
    for each in run.spans:
        for name, value in each.attributes.items():
            if name in INTEGERS and type(value) is not int:
                yield _at(each, name, f"is {_type(value)}, expected an integer")
            elif name in TEXTS and name.startswith(PREFIX) and type(value) is not str:
                yield _at(each, name, f"is {_type(value)}, expected text")


def _type(value: Any) -> str:
    words = {str: "text", int: "an integer", float: "a float", bool: "a boolean", bytes: "bytes", list: "a list"}
    return words.get(type(value), "no value" if value is None else "a map")


def check_kind(run: ExportedRun) -> Iterator[Finding]:
    return _check_value(run, names.KIND, lambda value: value in _KINDS)


def check_name(run: ExportedRun) -> Iterator[Finding]:
    return _check_value(run, names.NAME, bool)


def check_effect(run: ExportedRun) -> Iterator[Finding]:
    return _check_value(run, names.EFFECT, lambda value: value in _EFFECTS)


def check_outcome(run: ExportedRun) -> Iterator[Finding]:
    return _check_value(run, names.OUTCOME, lambda value: value in _ENDED)


def _check_value(run: ExportedRun, name: str, is_valid: Callable[[Any], bool]) -> Iterator[Finding]:
    for each in run.calls:
        if not is_valid(each.attributes.get(name)):
            yield _at(each, name, _value(each, name))


def check_payload(run: ExportedRun) -> Iterator[Finding]:
    for each in run.calls:
        is_ok = each.attributes.get(names.OUTCOME) == Outcome.OK.value
        for name, is_needed in ((names.REQUEST, True), (names.RESPONSE, is_ok)):
            if is_needed and not each.attributes.get(name):
                yield _at(each, name, "missing or empty")
                continue
            try:
                parse(each.attributes, name)
            except ValueError as exc:
                yield _at(each, name, f"is not JSON: {exc}")


def check_objects(run: ExportedRun) -> Iterator[Finding]:
    for each in run.spans:
        for name in (*_OBJECTS, names.READS, names.CLOCKS):
            try:
                value = parse(each.attributes, name)
            except ValueError as exc:
                yield _at(each, name, f"is not JSON: {exc}")
                continue
            if value is None:
                continue
            if name in _OBJECTS and not isinstance(value, dict):
                yield _at(each, name, "is JSON, but not an object")
            elif name not in _OBJECTS and not isinstance(value, list):
                yield _at(each, name, "is JSON, but not a list")
            elif name == names.CLOCKS and not all(type(item) is int for item in value):
                yield _at(each, name, "has items that are not integers")


def check_secrets(run: ExportedRun) -> Iterator[Finding]:
    # What Python would redact; the key doesn't matter, tokens of every key pass
    redactor = Redactor(_NO_KEY, key_id_of(_NO_KEY)).run()
    for each in run.spans:
        for name, value in each.attributes.items():
            counts: dict[str, int] = {}
            if isinstance(value, str) and redactor.text(value, counts) != value:
                # Never the value itself: a report is passed on
                yield _at(each, name, f"holds what looks like a secret ({', '.join(sorted(counts)) or 'in context'})")
