"""A digest of the code of a boundary's function, by which a replay notices that the served function has changed.

The digest covers the byte code of the function and of the agent's functions that it calls by a global name; comments
and positions don't change it. Python versions compile differently, so digests are compared within one version only.
"""

from __future__ import annotations

import hashlib
import sys
from types import CodeType
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.model.guard import guarded

__all__ = ["BODY", "describe_body", "is_changed"]

BODY: Final = "body"
"""Member of a call's meta."""
FUNCTIONS_MAX: Final = 200
"""How many functions below one boundary its digest covers."""
_REMEMBERED_MAX: Final = 2_000
_VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}:"
_digests: dict[int, tuple[CodeType, str]] = {}


def describe_body(function: object) -> str:
    """`3.12:` and 16 hexadecimal characters; '' if it is not a function of the agent."""
    inner = ids.unwrap(function)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    known = _digests.get(id(code))
    if known is not None:
        return known[1]
    found = guarded("the digest of a function", _digest, inner, code) or ""
    if len(_digests) < _REMEMBERED_MAX:
        _digests[id(code)] = (code, found)
    return found


def is_changed(recorded: object, now: object) -> bool:
    """Whether two digests of one Python version differ; False where either is missing."""
    if not (isinstance(recorded, str) and isinstance(now, str) and recorded and now) or recorded == now:
        return False
    return recorded.partition(":")[0] == now.partition(":")[0]


def _digest(function: Any, code: CodeType) -> str:
    if not ids.is_agent_file(code.co_filename):
        return ""
    hashed = hashlib.sha256()
    seen: set[int] = set()
    waiting: list[tuple[Any, CodeType]] = [(function, code)]
    while waiting and len(seen) < FUNCTIONS_MAX:
        owner, each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for name in _add_code(hashed, each):
            called = ids.unwrap(getattr(owner, "__globals__", {}).get(name))
            below = getattr(called, "__code__", None)
            if isinstance(below, CodeType) and ids.is_agent_file(below.co_filename):
                waiting.append((called, below))
    return _VERSION + hashed.hexdigest()[:16]


def _add_code(hashed: Any, code: CodeType) -> list[str]:
    """Hash a code object and those nested in it; return the names that it looks up."""
    names = list(code.co_names)
    hashed.update(code.co_code)
    hashed.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _add_code(hashed, constant)
        elif isinstance(constant, frozenset):
            hashed.update(repr(sorted(map(repr, constant))).encode())
        else:
            hashed.update(repr(constant).encode())
    return names
