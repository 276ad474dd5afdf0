"""Values of a table under their names, as a list of rows has them, so that redaction by names sees them."""

from __future__ import annotations

from typing import Any

from spanreplay.codec._engine import TAG, is_clean_text

__all__ = ["label_text", "pack_named", "says_secret", "unpack_named"]


def label_text(label: Any) -> str:
    """A label as redaction reads it; nothing is decoded from it."""
    if type(label) is tuple:  # of several levels
        label = ".".join(part for part in label if type(part) is str)
    return label if type(label) is str and label != TAG and is_clean_text(label) else ""


def says_secret(name: str, *, weakly: bool = False) -> bool:
    """Whether a name says that its value is a secret; `weakly`: that it may be one, if it looks like one."""
    from spanreplay.redact.names import Strength, secret_name  # redaction is much to load where no table is

    strength = secret_name(name)
    return strength is Strength.WEAK if weakly else strength is not None


def pack_named(name: str, values: Any, row_names: list[str]) -> dict[str, Any]:
    """The encoded values under the name of their column; a list of them under those of their rows, if there are any."""
    if type(values) is list:
        if not row_names and says_secret(name, weakly=True):
            row_names = [name] * len(values)  # which only says something of a text
        if row_names:
            values = {"rows": [{each: value} for each, value in zip(row_names, values, strict=True)]}
    return {name: values}


def unpack_named(named: Any) -> Any:
    """The encoded values that `pack_named` was given."""
    (values,) = named.values()
    if type(values) is dict and "rows" in values:
        return [value for row in values["rows"] for value in row.values()]
    return values
