"""Generates strings that a foreign regular expression matches: samples of a format that others have described."""

from __future__ import annotations

import random
import re
import string
import sys
from collections.abc import Iterator
from typing import Any, Final

if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]  # the stubs leave the parser out
    from re import _parser as parser  # type: ignore[attr-defined]  # the stubs leave the parser out
else:
    import sre_constants as sre
    import sre_parse as parser

__all__ = ["compile_go", "make_strings"]

_REPEATS_MORE: Final = 12
_LETTERS: Final = string.ascii_letters + string.digits
_PRINTABLE: Final = [ord(c) for c in string.printable if not c.isspace()]
_CLASSES: Final = {
    "[[:alnum:]]": "[A-Za-z0-9]",
    "[:alnum:]": "A-Za-z0-9",
    "[:alpha:]": "A-Za-z",
    "[:digit:]": "0-9",
    "[:xdigit:]": "0-9A-Fa-f",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    r"\z": r"\Z",
}
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z-]+)\)")


def compile_go(expression: str) -> re.Pattern[str] | None:
    """Compile a Go expression in Python; return None if that's impossible."""
    for theirs, ours in _CLASSES.items():
        expression = expression.replace(theirs, ours)
    try:
        return re.compile(_scope_flags(expression))
    except re.error:
        return None


def _scope_flags(expression: str) -> str:
    """Rewrite flags: in Go `(?i)` applies up to the end of its group; Python needs an explicit group."""
    made: list[str] = []
    opened = [0]
    at = 0
    in_class = False
    while at < len(expression):
        char = expression[at]
        flags = None if in_class else _FLAGS.match(expression, at)
        if char == "\\":
            made.append(expression[at : at + 2])
            at += 2
            continue
        if flags is not None:
            made.append(f"(?{flags[1]}:")
            opened[-1] += 1
            at = flags.end()
            continue
        if in_class:
            in_class = char != "]" or expression[at - 1] == "["
        elif char == "[":
            in_class = True
        elif char == "(":
            opened.append(0)
        elif char == ")":
            made.append(")" * opened.pop())
        made.append(char)
        at += 1
    return "".join(made) + ")" * opened[0]


def make_strings(pattern: re.Pattern[str], rng: random.Random, count: int) -> Iterator[str]:
    """Yield strings for the first group of an expression, or for the whole expression if it has none."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    part = _find_group(tree, 1) or tree
    for _ in range(count):
        yield _write(part, rng, {})


def _find_group(tree: Any, number: int) -> Any:
    for code, value in tree:
        if code is sre.SUBPATTERN:
            if value[0] == number:
                return value[3]
            found = _find_group(value[3], number)
        elif code is sre.BRANCH:
            found = next(filter(None, (_find_group(branch, number) for branch in value[1])), None)
        elif code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            found = _find_group(value[2], number)
        else:
            continue
        if found is not None:
            return found
    return None


def _write(tree: Any, rng: random.Random, groups: dict[int, str]) -> str:
    return "".join(_write_one(code, value, rng, groups) for code, value in tree)


def _write_one(code: Any, value: Any, rng: random.Random, groups: dict[int, str]) -> str:
    if code is sre.LITERAL:
        return chr(value)
    if code is sre.NOT_LITERAL:
        return rng.choice(_LETTERS.replace(chr(value), ""))
    if code is sre.ANY:
        return "."  # outside of a class, it is usually an unescaped dot
    if code is sre.IN:
        return chr(rng.choice(_members(value)))
    if code is sre.BRANCH:
        return _write(rng.choice(value[1]), rng, groups)
    if code is sre.SUBPATTERN:
        made = _write(value[3], rng, groups)
        if value[0]:
            groups[value[0]] = made
        return made
    if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, part = value
        times = rng.randint(low, min(int(high), low + _REPEATS_MORE))
        return "".join(_write(part, rng, groups) for _ in range(times))
    if code is sre.GROUPREF:
        return groups.get(value, "")
    return ""  # zero-width: anchors and lookarounds


def _members(items: Any) -> list[int]:
    found: set[int] = set()
    is_negated = False
    for code, value in items:
        if code is sre.NEGATE:
            is_negated = True
        elif code is sre.LITERAL:
            found.add(value)
        elif code is sre.RANGE:
            found.update(range(value[0], min(value[1], 126) + 1))
        elif code is sre.CATEGORY:
            found.update(_category(value))
    if is_negated:
        return [c for c in map(ord, _LETTERS) if c not in found] or [c for c in _PRINTABLE if c not in found]
    plain = [c for c in found if c in _PRINTABLE and (c != 0x7C or len(found) == 1)]  # `[a|b]` means a or b
    return sorted(plain or found)


def _category(name: Any) -> list[int]:
    if name is sre.CATEGORY_DIGIT:
        return [ord(c) for c in string.digits]
    if name is sre.CATEGORY_WORD:
        return [ord(c) for c in _LETTERS + "_"]
    if name is sre.CATEGORY_SPACE:
        return [32]
    return [ord(c) for c in _LETTERS]
