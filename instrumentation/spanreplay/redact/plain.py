"""Check and write small values of plain JSON types, as most arguments and results are, in one walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["write_plain"]

DEPTH_MAX: Final = 6
ITEMS_MAX: Final = 64
_WIDE_INT: Final = 2**63


def write_plain(
    value: Any,
    is_plain: Callable[[str], bool],
    names: Mapping[str, str],
    write_name: Callable[[str], str],
    depth: int = 0,
) -> str:
    """The JSON text of a small value of plain types; '' for any other.

    `is_plain` decides about texts. `names` maps known names to their written form, colon included; `write_name`
    writes any other name, or returns '' to refuse it.
    """
    kind = type(value)
    if kind is str:
        return encode_basestring(value) if is_plain(value) else ""
    if kind is int:
        return f"{value}" if -_WIDE_INT <= value < _WIDE_INT else ""
    if kind is float:
        return float.__repr__(value) if value - value == 0.0 else ""  # finite
    if value is None or kind is bool:
        return "null" if value is None else "true" if value else "false"
    if depth == DEPTH_MAX or (kind is not dict and kind is not list) or len(value) > ITEMS_MAX:
        return ""
    parts = []
    if kind is list:
        for item in value:
            text = write_plain(item, is_plain, names, write_name, depth + 1)
            if not text:
                return ""
            parts.append(text)
        return f"[{','.join(parts)}]"
    for name, member in value.items():
        shown = (names.get(name) or write_name(name)) if type(name) is str else ""
        kind = type(member)
        # Most members are texts and numbers: no recursive call for them
        if kind is str and is_plain(member):
            text = encode_basestring(member)
        elif kind is int and -_WIDE_INT <= member < _WIDE_INT:
            text = f"{member}"
        else:
            text = write_plain(member, is_plain, names, write_name, depth + 1)
        if not shown or not text:
            return ""
        parts.append(shown + text)
    return f"{{{','.join(parts)}}}"
