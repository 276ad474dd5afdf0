"""Patches: one change to a field of a call's request or response, as a line of text.

    llm[3].system += "ask first"                   add to the system prompt of the third model call
    llm[*].temperature = 0                         every model call
    tool:get_price[2].response.price = 12.5        serve another price
    delete llm[3].tools[0]                         remove a field
    tool:get_price[2] raises TimeoutError: no answer   raise an exception
    llm[2] answers 503 {"error": "overloaded"}     serve another HTTP status and body

SELECTOR[NUMBER] names the calls, the path names a field, `=` sets it, `+=` adds to text, numbers, lists and objects.
Values are JSON; anything else is taken as text if it can't be mistaken for JSON. `request.` may be omitted from a field
of a request. Paths also lead into text that contains JSON.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model.errors import ConfigError
from spanreplay.runtime.edits.selector import Selector, parse_selector

REQUEST, RESPONSE = "request", "response"
SET, ADD, DELETE = "=", "+=", "delete"
PATCH_CHARACTERS_MAX: Final = 100_000
STEPS_MAX: Final = 50
KEYS_SHOWN_MAX: Final = 12
_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_INDEX: Final = re.compile(r"\[\s*(-?\d+)\s*\]")
_WHOLE: Final = re.compile(r"\s+(raises|answers)\s+(?=\S)")
_RAISED: Final = re.compile(r"((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?::\s*(.*))?\Z", re.DOTALL)
_ANSWERED: Final = re.compile(r"([1-5]\d\d)(?:\s+(.*))?\Z", re.DOTALL)
_OF_BODY: Final = ("content-length", "content-encoding", "transfer-encoding")
"""Headers that describe the recorded body, and not another one."""
_LOOKS_LIKE_JSON: Final = frozenset('"{[-0123456789')
_HINT: Final = 'for example: llm[3].system += "ask first", or tool:get_price[2].response = 12.5'
Step = str | int


@dataclass(frozen=True)
class Patch:
    """A parsed patch. `columns` holds the position in `text` at which each step of the path begins."""

    text: str
    selector: Selector
    side: str
    path: tuple[Step, ...]
    op: str
    value: Any = None
    columns: tuple[int, ...] = ()
    is_error: bool = False
    """Whether the value is an exception that the call raises."""
    is_answer: bool = False
    """Whether the value is the whole answer of another service: status, headers and body."""

    def to_json(self) -> Any:
        """The form in a plan's JSON: the text, or the members given by a program instead."""
        if self.text and self.columns:
            return self.text
        told = {"selector": str(self.selector), "value": self.value, "is_error": self.is_error}
        return {**told, "answer": self.text} if self.is_answer else told

    @classmethod
    def from_json(cls, value: Any) -> Patch:
        """The patch that `to_json` wrote. Raises: ConfigError, KeyError, TypeError."""
        if isinstance(value, str):
            return parse_patch(value)
        selector = parse_selector(str(value["selector"]))
        if "answer" in value:
            return set_answer(selector, value["value"], str(value["answer"]))
        return _whole_response(selector, value["value"], is_error=bool(value["is_error"]))

    def fail(self, problem: str, step: int = -1) -> ConfigError:
        """An error that points at a step of the path; -1: the last step."""
        at = self.columns[step] if self.columns and -len(self.columns) <= step < len(self.columns) else 0
        return point_at(problem, self.text, at)


class Unfit(Exception):
    """A path does not fit a value; `step` is the position of the step."""

    def __init__(self, step: int, problem: str) -> None:
        super().__init__(problem)
        self.step = step


def point_at(problem: str, text: str, column: int, hint: str = "") -> ConfigError:
    """An error with the text and a caret below the column."""
    return ConfigError(f"a patch cannot be used: {problem}\n{text}\n{' ' * column}^", hint=hint)


def set_response(selector: Selector, value: Any, error: BaseException | None) -> Patch:
    """The patch that serves another value, or raises an exception. Raises: Unserializable."""
    from spanreplay import codec

    if error is not None:
        return _whole_response(selector, codec.encode_exception(error), is_error=True)
    return _whole_response(selector, codec.encode(value), is_error=False)


def set_answer(selector: Selector, answer: Any, text: str) -> Patch:
    """The patch that serves the answer of another service; `text` is its wording in a verdict.

    `answer`: `status`; `headers`, pairs that replace headers of the same names; `without`, names of headers to remove;
    `body` as a recorded chunk, None for the recorded one.
    """
    return Patch(text, selector, RESPONSE, (), SET, answer, is_answer=True)


def _whole_response(selector: Selector, encoded: Any, *, is_error: bool) -> Patch:
    word = "an error" if is_error else "a value"
    return Patch(f"{selector}.response = ({word})", selector, RESPONSE, (), SET, encoded, is_error=is_error)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────
def parse_patch(text: str) -> Patch:
    """Parse a patch. Raises: ConfigError with a caret below the part that can't be read."""
    if len(text) > PATCH_CHARACTERS_MAX:
        raise ConfigError(f"a patch has more than {PATCH_CHARACTERS_MAX:,} characters")
    if "\n" in text:
        text = " ".join(text.split())
    is_delete = text.lstrip().startswith(f"{DELETE} ")
    start = len(text) - len(text.lstrip()) + (len(DELETE) + 1 if is_delete else 0)
    selector, at = _read_selector(text, start)
    whole = None if is_delete else _WHOLE.match(text, at)
    if whole is not None:
        return _read_whole(text, selector, whole[1], whole.end())
    path, columns, at = _read_path(text, at)
    side = str(path[0]) if path and path[0] in (REQUEST, RESPONSE) else ""
    if side:
        path, columns = path[1:], columns[1:] or columns
    op, value = (DELETE, None) if is_delete else _read_value(text, at)
    if is_delete and text[at:].strip():
        raise point_at("nothing follows the field to delete", text, _skip(text, at))
    if is_delete and not path:
        raise point_at("a call as a whole can't be deleted: name a field", text, start)
    return Patch(text, selector, side or REQUEST, tuple(path), op, value, tuple(columns) or (start,))


def _read_whole(text: str, selector: Selector, verb: str, at: int) -> Patch:
    """Read what follows `raises` or `answers`."""
    written, columns = text[at:].rstrip(), (at,)
    if verb == "answers":
        answer = _ANSWERED.match(written)
        if answer is None:
            raise point_at("an HTTP status and a body belong here", text, at, "for example: llm[2] answers 503")
        value = {"status": int(answer[1]), "headers": [], "without": list(_OF_BODY), "body": answer[2] or ""}
        return Patch(text, selector, RESPONSE, (), SET, value, columns, is_answer=True)
    raised = _RAISED.match(written)
    named = getattr(builtins, raised[2], None) if raised is not None and not raised[1] else Exception
    if raised is None or not (isinstance(named, type) and issubclass(named, Exception)):
        hint = "for example: TimeoutError: no answer, or httpx.ConnectError: refused"
        raise point_at("the name of an exception belongs here", text, at, hint)
    module = raised[1].rstrip(".") or "builtins"
    args = [raised[3]] if raised[3] else []
    value = {"$type": "exception", "class": f"{module}:{raised[2]}", "args": args}
    return Patch(text, selector, RESPONSE, (), SET, value, columns, is_error=True)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _read_selector(text: str, start: int) -> tuple[Selector, int]:
    at = _skip(text, start)
    opening = text.find("[", at)
    assignment = text.find("=", at)
    if opening < 0 or 0 <= assignment < opening:
        kind = re.match(r"[^.=+\s]*", text[at:])
        name = kind.group() if kind else ""
        problem = f"which call? {name or 'llm'}[3] is the third, {name or 'llm'}[*] is every one"
        raise point_at(problem, text, at + len(name), _HINT)
    closing = text.find("]", opening)
    if closing < 0:
        raise point_at("this bracket is not closed", text, opening, _HINT)
    try:
        return parse_selector(text[at : closing + 1]), closing + 1
    except ConfigError as exc:
        raise point_at(str(exc), text, opening, exc.hint) from None


def _read_path(text: str, at: int) -> tuple[list[Step], list[int], int]:
    path: list[Step] = []
    columns: list[int] = []
    while at < len(text) and text[at] in ".[":
        if len(path) >= STEPS_MAX:
            raise point_at(f"a path has at most {STEPS_MAX} steps", text, at)
        step, end = _read_step(text, at)
        path.append(step)
        columns.append(at + (text[at] == "."))
        at = end
    return path, columns, at


def _read_step(text: str, at: int) -> tuple[Step, int]:
    if text[at] == ".":
        name = _NAME.match(text, at + 1)
        if name is None:
            raise point_at('a field\'s name is missing; an odd name goes into ["…"]', text, at + 1)
        return name.group(), name.end()
    index = _INDEX.match(text, at)
    if index is not None:
        return int(index[1]), index.end()
    try:
        key, end = json.JSONDecoder().raw_decode(text, _skip(text, at + 1))
    except ValueError:
        key, end = None, at
    end = _skip(text, end)
    if not isinstance(key, str) or text[end : end + 1] != "]":
        raise point_at("brackets hold a number or a name in quotes", text, at + 1)
    return key, end + 1


def _read_value(text: str, at: int) -> tuple[str, Any]:
    at = _skip(text, at)
    op = next((op for op in (ADD, SET) if text.startswith(op, at)), "")
    if not op:
        raise point_at("= or += is missing here", text, at, _HINT)
    begin = _skip(text, at + len(op))
    written = text[begin:].rstrip()
    if not written:
        raise point_at("a value is missing here", text, begin, _HINT)
    try:
        return op, json.loads(written, parse_constant=_refuse_constant)
    except ValueError as exc:
        if written[0] in _LOOKS_LIKE_JSON:
            column = begin + getattr(exc, "pos", 0)
            raise point_at(
                "the value is not JSON", text, min(column, len(text)), 'text goes into quotes: "…"'
            ) from None
        return op, written


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# ── Applying ────────────────────────────────────────────────────────────────────────────────────────
def edit(value: Any, patch: Patch, path: Sequence[Step] | None = None) -> Any:
    """The JSON value with the patch's field changed; the original is not modified. Raises: Unfit."""
    return _edit(value, tuple(patch.path if path is None else path), 0, patch.op, patch.value)


def _edit(value: Any, path: tuple[Step, ...], at: int, op: str, operand: Any) -> Any:
    if at == len(path):
        return operand if op == SET else _add(value, operand, at)
    step = path[at]
    if isinstance(value, str):
        return _edit_text(value, path, at, op, operand)
    if isinstance(value, dict) and "$type" in value:
        below = "fields" if isinstance(value.get("fields"), dict) else "items"
        if step not in value and isinstance(value.get(below), (dict, list)):
            return {**value, below: _edit(value[below], path, at, op, operand)}
    is_last = at == len(path) - 1
    if isinstance(value, dict):
        return _edit_object(value, str(step), path, at, op, operand, is_last=is_last)
    if isinstance(value, list):
        return _edit_list(value, step, path, at, op, operand, is_last=is_last)
    raise Unfit(at, f"{_describe(value)} has no fields")


def _edit_text(value: str, path: tuple[Step, ...], at: int, op: str, operand: Any) -> str:
    try:
        inner = json.loads(value)
    except ValueError:
        inner = None
    if not isinstance(inner, (dict, list)):
        raise Unfit(at, "text has no fields")
    return json.dumps(_edit(inner, path, at, op, operand), ensure_ascii=False)


def _edit_object(
    value: dict[str, Any], key: str, path: tuple[Step, ...], at: int, op: str, operand: Any, *, is_last: bool
) -> dict[str, Any]:
    if key not in value and not (is_last and op == SET):
        raise Unfit(at, f"there is no {key!r} here, only {_list_keys(value)}")
    if is_last and op == DELETE:
        return {k: v for k, v in value.items() if k != key}
    return {**value, key: _edit(value.get(key), path, at + 1, op, operand)}


def _edit_list(
    value: list[Any], step: Step, path: tuple[Step, ...], at: int, op: str, operand: Any, *, is_last: bool
) -> list[Any]:
    if isinstance(step, str):
        raise Unfit(at, f"this is a list of {len(value)} elements: [0] is the first one")
    index = step if step >= 0 else len(value) + step
    if is_last and op == SET and index == len(value):
        return [*value, operand]
    if not 0 <= index < len(value):
        raise Unfit(at, f"there is no element {step}: the list has {len(value)} elements")
    if is_last and op == DELETE:
        return [*value[:index], *value[index + 1 :]]
    return [*value[:index], _edit(value[index], path, at + 1, op, operand), *value[index + 1 :]]


def _add(value: Any, operand: Any, at: int) -> Any:
    if isinstance(value, str) and isinstance(operand, str):
        return value + operand
    if isinstance(value, list):
        return [*value, *operand] if isinstance(operand, list) else [*value, operand]
    if isinstance(value, dict) and isinstance(operand, dict):
        return {**value, **operand}
    if _is_number(value) and _is_number(operand):
        return value + operand
    raise Unfit(at - 1, f"{_describe(operand)} can't be added to {_describe(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _describe(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names: dict[type, str] = {str: "text", dict: "an object", list: "a list"}
    return names.get(type(value), "a number")


def _list_keys(value: dict[str, Any]) -> str:
    keys = sorted(map(str, value))
    more = f" and {len(keys) - KEYS_SHOWN_MAX} more" if len(keys) > KEYS_SHOWN_MAX else ""
    return (", ".join(keys[:KEYS_SHOWN_MAX]) or "nothing") + more
