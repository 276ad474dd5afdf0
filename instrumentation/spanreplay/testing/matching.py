"""Expected calls: a name, or a name with arguments, each a value or a matcher."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spanreplay.model.call import Kind
from spanreplay.model.errors import ConfigError
from spanreplay.redact import TOKEN
from spanreplay.runtime.edits.selector import Selector
from spanreplay.testing.made_calls import MadeCall

__all__ = ["ANYTHING", "Call", "Expected", "Matcher", "matcher_of"]

_KINDS: Final = frozenset(kind.value for kind in Kind)
DIFFERENCES_MAX: Final = 5


class _Anything:
    """Equal to every value."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()


@dataclass(frozen=True)
class Call:
    """An expected call: `Call("refund", {"order": 17, "amount": lambda amount: amount < 20})`.

    `name`: `refund` or `get_*` is a tool, `llm`, `retriever:docs` or `http:*` a call of this kind. `arguments` are
    those that matter; with `is_closed` there must be no others. A value is compared with `==`; a type, a compiled
    pattern, a function that returns whether the value is right, and an object with an `__eq__` of its own are matchers.
    `result` is compared in the same way with what the call returned.
    """

    name: str
    arguments: Mapping[str, Any] | None = None
    result: Any = ANYTHING
    is_closed: bool = False

    def __str__(self) -> str:
        if self.arguments is None:
            return self.name
        shown = [f"{name}={_show(value)}" for name, value in self.arguments.items()]
        return f"{self.name}({', '.join([*shown, *([] if self.is_closed else ['…'])])})"


Expected: TypeAlias = "str | Call | Callable[[MadeCall], bool]"
Redact: TypeAlias = "Callable[[Any], Any] | None"


@dataclass(frozen=True)
class Matcher:
    """One expected call, ready to be compared."""

    text: str
    selectors: tuple[Selector, ...]
    call: Call | None
    predicate: Callable[[MadeCall], bool] | None = None
    redact: Redact = None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of calls that it names."""
        return frozenset(each.boundary.partition(":")[0] for each in self.selectors)

    def has_name(self, made: MadeCall) -> bool:
        """Whether the call is of this kind and name."""
        if self.predicate is not None:
            return self.matches(made)
        return any(each.matches(f"{made.kind}:{made.name}", "") for each in self.selectors)

    def matches(self, made: MadeCall) -> bool:
        """Whether the call is the expected one."""
        if self.predicate is not None:
            return bool(self.predicate(made))
        return self.has_name(made) and not self.differences(made)

    def differences(self, made: MadeCall) -> list[str]:
        """The arguments and the result that are not as expected, in words."""
        call = self.call
        if call is None:
            return []
        wanted = dict(call.arguments or {})
        found = [text for name, value in wanted.items() for text in _compare(name, value, made.arguments, self.redact)]
        if call.is_closed:
            found += [
                f"{name}={_show(made.arguments[name])} is not expected" for name in made.arguments if name not in wanted
            ]
        if call.result is not ANYTHING:
            found += _compare("result", call.result, {"result": made.result}, self.redact)
        return found


def matcher_of(expected: Any, redact: Redact = None) -> Matcher:
    """Make a matcher of an expected call. Raises: ConfigError for anything else."""
    if isinstance(expected, str):
        expected = Call(expected)
    if isinstance(expected, Call):
        return Matcher(str(expected), _selectors_of(expected.name), expected, None, redact)
    if callable(expected):
        return Matcher(getattr(expected, "__name__", repr(expected)), (), None, expected, redact)
    raise ConfigError(
        f"{expected!r} is not an expected call",
        hint='write a name such as "get_order", Call("get_order", {"id": 17}), or a function of a MadeCall',
    )


def _selectors_of(name: str) -> tuple[Selector, ...]:
    kind = name.partition(":")[0]
    if not name:
        raise ConfigError("an expected call without a name", hint='write the name of a tool, or a kind such as "llm"')
    if name in _KINDS:
        return (Selector(f"{name}:*"),)
    if kind in _KINDS and ":" in name:
        return (Selector(name),)
    return (Selector(f"{Kind.TOOL.value}:{name}"), Selector(f"{Kind.MCP.value}:{name}"))


def _compare(name: str, expected: Any, values: Mapping[str, Any], redact: Redact) -> list[str]:
    if name not in values:
        return [f"{name} is missing, expected {_show(expected)}"]
    value = values[name]
    hidden = expected if redact is None else _redacted(redact, name, expected)
    if is_match(expected, value) or (hidden is not expected and is_match(hidden, value)):
        return []
    text = f"{name}: expected {_show(expected)}, found {_show(value)}"
    if TOKEN.search(repr(value).encode()) and redact is None:
        text += " (hidden by redaction: match it with a function, or run where the recording's redaction key is)"
    return [text]


def _redacted(redact: Callable[[Any], Any], name: str, expected: Any) -> Any:
    """A plain expected value as it reads in a recording; matchers stay as they are."""
    return redact({name: expected})[name] if _is_plain(expected) else expected


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(member) for name, member in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(each) for each in value)
    return value is None or type(value) in (str, int, float, bool)


def is_match(expected: Any, value: Any) -> bool:
    """Whether a value equals an expected one, or a matcher accepts it; objects and lists are compared by member."""
    if type(expected) in (dict, list, tuple):
        return _is_match_by_member(expected, value)
    if isinstance(expected, bool) is not isinstance(value, bool) and isinstance(expected, (bool, int, float)):
        return False  # in Python True == 1
    try:
        if bool(expected == value):
            return True
    except Exception:  # noqa: BLE001 -- arrays and the like have no truth value
        return repr(expected) == repr(value)
    if isinstance(expected, type):
        return isinstance(value, expected) and not (isinstance(value, bool) and expected is int)
    if isinstance(expected, re.Pattern):
        return isinstance(value, str) and expected.search(value) is not None
    return bool(expected(value)) if callable(expected) else False


def _is_match_by_member(expected: Any, value: Any) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(value, Mapping)
            and expected.keys() == value.keys()
            and all(is_match(member, value[name]) for name, member in expected.items())
        )
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(expected) == len(value)
        and all(map(is_match, expected, value))
    )


def _show(value: Any, characters_max: int = 80) -> str:
    text = getattr(value, "__name__", "") if callable(value) else repr(value)
    text = text or repr(value)
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"
