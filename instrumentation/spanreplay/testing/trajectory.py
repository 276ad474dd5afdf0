"""`assert_trajectory`: the calls that a run made, compared with a list of expected calls. No model is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from spanreplay.model.call import Kind
from spanreplay.model.errors import ConfigError
from spanreplay.testing.alignment import Pair, align, render_pairs
from spanreplay.testing.made_calls import CallsOfRun, MadeCall, RunLike, read_calls
from spanreplay.testing.matching import Expected, Matcher, matcher_of

__all__ = ["assert_trajectory"]

Mode: TypeAlias = "Literal['exact', 'in_order', 'any_order', 'subset', 'superset']"
CustomMode: TypeAlias = "Callable[[Sequence[MadeCall], Sequence[Expected]], bool | str]"
MODES: Final = {
    "exact": "these calls, in this order, and no others",
    "in_order": "these calls, in this order; others may come between",
    "any_order": "these calls, in any order, and no others",
    "subset": "no calls but these, in any order; some may be absent",
    "superset": "these calls, in any order; there may be others",
}
CALLS_MAX: Final = 2_000


def assert_trajectory(
    run: RunLike,
    expected: Iterable[Expected],
    mode: Mode | CustomMode = "exact",
    *,
    kinds: Iterable[str] = (),
    of: Literal["made", "asked"] = "made",
) -> None:
    """Assert which calls a run made: `assert_trajectory(replay_session, ["get_order", Call("refund", {"order": 17})])`.

    `run` is the fixture `replay_session`, a block of `spanreplay.record` or `replay`, a recording's file or a run id.
    `mode`: exact, in_order, any_order, subset, superset, or a function that gets the calls and the expected list and
    returns True, False, or text that says what is wrong.
    Compared are the calls of tools (MCP tools included), of the kinds that the list names, and of `kinds`. With
    `of="asked"`, the calls of tools for which models asked in their answers, whether or not they were made.

    Makes no call. Raises: AssertionError with both lists, aligned; ConfigError; SourceError.
    """
    __tracebackhide__ = True
    read = read_calls(run)
    wanted = tuple(expected)
    matchers = [matcher_of(each, read.redact) for each in wanted]
    if of not in ("made", "asked"):
        raise ConfigError(f"of={of!r} is not 'made' or 'asked'")
    made = _select(read, matchers, frozenset(kinds), of)
    if callable(mode):
        _judge_custom(mode, made, wanted, matchers)
        return
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is not one of {', '.join(MODES)}", hint="or give a function")
    pairs = align(matchers, made, is_ordered=mode in ("exact", "in_order"))
    if any(_is_wrong(pair, mode) for pair in pairs):
        raise AssertionError(_describe(pairs, mode, read, of))


def _select(read: CallsOfRun, matchers: Sequence[Matcher], kinds: frozenset[str], of: str) -> list[MadeCall]:
    unknown = kinds - {kind.value for kind in Kind}
    if unknown:
        raise ConfigError(f"{min(unknown)!r} is not a kind of call", hint=", ".join(kind.value for kind in Kind))
    named = kinds.union(*(each.kinds for each in matchers)) - {Kind.TOOL.value, Kind.MCP.value}
    if of == "asked":
        found = [asked for call in read.calls for asked in call.asked]
    else:
        found = [call for call in read.calls if call.is_tool or call.kind in named or _is_named(call, matchers)]
    if len(found) + len(matchers) > CALLS_MAX:
        raise ConfigError(f"{len(found)} calls are too many to compare; at most {CALLS_MAX} with the expected ones")
    return found


def _is_named(call: MadeCall, matchers: Sequence[Matcher]) -> bool:
    """Whether the list writes out a file, program or database, as `subprocess.*` or `open`; `*` is not enough."""
    first = call.name.partition(".")[0]
    return any(each.call is not None and first in each.call.name and each.has_name(call) for each in matchers)


def _is_wrong(pair: Pair, mode: str) -> bool:
    if pair.made is None:
        return mode != "subset"
    if pair.expected is None:
        return mode not in ("in_order", "superset")
    return not pair.is_match


def _judge_custom(mode: CustomMode, made: Sequence[MadeCall], wanted: Any, matchers: Sequence[Matcher]) -> None:
    __tracebackhide__ = True
    name = getattr(mode, "__name__", repr(mode))
    outcome: object = mode(made, wanted)
    if not isinstance(outcome, (bool, str)):
        raise ConfigError(
            f"the mode {name} returned {type(outcome).__name__}",
            hint="return True, False, or text that says what is wrong",
        )
    if outcome is True or outcome == "":
        return
    why = f": {outcome}" if outcome else ""
    lines = render_pairs(align(matchers, made, is_ordered=True), lambda pair: False)
    raise AssertionError(f"the run's calls are not as {name} demands{why}\n{lines}")


def _describe(pairs: Sequence[Pair], mode: str, read: CallsOfRun, of: str) -> str:
    first = next(pair for pair in pairs if _is_wrong(pair, mode))
    what = "the calls that models asked for" if of == "asked" else "the run's calls"
    text = f"{what} are not the expected ones (mode {mode}: {MODES[mode]})\n"
    text += f"  first difference: {first.describe()}\n"
    text += render_pairs(pairs, lambda pair: _is_wrong(pair, mode))
    asked = sum(len(call.asked) for call in read.calls)
    if of == "made" and asked and not any(call.is_tool for call in read.calls):
        text += (
            f"\n  no call of a tool was recorded, but models asked for {asked}: compare those with of='asked', or mark "
            "the functions of the tools with @spanreplay.boundary"
        )
    return text
