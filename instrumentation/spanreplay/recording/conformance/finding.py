"""What a rule found, and the attributes of the contract by type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model import attributes as names

__all__ = ["INTEGERS", "NAMES", "TEXTS", "Finding", "parse"]

INTEGERS: Final = frozenset({names.SEQ, names.END_SEQ, names.JOINT, names.PARENT, names.INDEX})
TEXTS: Final = frozenset(
    {names.SCHEMA, names.RUN_ID, names.KIND, names.NAME, names.EFFECT, names.LANE, names.CALL_ID, names.KEY}
    | {names.KEYSPEC, names.DIGESTS, names.REQUEST, names.RESPONSE, names.OUTCOME, names.CODE, names.REDACTIONS}
    | {names.READS, names.META, names.LEAF, names.PREV, names.CLOCKS, names.APP, names.ENV, names.MANIFEST}
    | {names.REPLAY_OF, names.USER_ID, names.SESSION_ID}
)
NAMES: Final = INTEGERS | TEXTS
"""Every attribute of the contract."""
SHOWN_MAX: Final = 60


@dataclass(frozen=True)
class Finding:
    """One place where a rule is broken."""

    where: str
    """The span, or the run."""
    attribute: str
    """'' if it is no single attribute."""
    what: str


def parse(attributes: Mapping[str, Any], name: str) -> Any:
    """The JSON in an attribute; None if it has none. Raises: ValueError."""
    text = attributes.get(name)
    if not isinstance(text, str) or not text:
        return None
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def shown(value: object) -> str:
    """A value in a message: of text only a short piece, which is no payload."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
