"""Puts the values of a table under their names, as in a list of rows, so that redaction by name sees them."""

from __future__ import annotations

from typing import Any

from spanreplay.codec._engine import TAG, is_clean_text

__all__ = ["label_text", "pack_named", "says_secret", "unpack_named"]


def label_text(label: Any) -> str:
    """A label as text for redaction; decoding does not use it."""
    if type(label) is tuple:  # of several levels
        label = ".".join(part for part in label if type(part) is str)
    return label if type(label) is str and label != TAG and is_clean_text(label) else ""


def says_secret(name: str, *, weakly: bool = False) -> bool:
    """Whether a name marks its value as a secret; `weakly`: as a secret only if the value looks like one."""
    from spanreplay.redact.names import Strength, secret_name  # slow to load, and needed only for tables

    strength = secret_name(name)
    return strength is Strength.WEAK if weakly else strength is not None


def pack_named(name: str, values: Any, row_names: list[str]) -> dict[str, Any]:
    """Put encoded values under their column's name; a list's values also under their rows' names, if there are any."""
    if type(values) is list:
        if not row_names and says_secret(name, weakly=True):
            row_names = [name] * len(values)  # a weak name matters only for texts
        if row_names:
            values = {"rows": [{each: value} for each, value in zip(row_names, values, strict=True)]}
    return {name: values}


def unpack_named(named: Any) -> Any:
    """Return the encoded values that were given to `pack_named`."""
    (values,) = named.values()
    if type(values) is dict and "rows" in values:
        return [value for row in values["rows"] for value in row.values()]
    return values
