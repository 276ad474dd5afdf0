"""The root span of a run as a record: readers decode it from the span's attributes, and signatures cover it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome, RootRecord
from spanreplay.model.errors import DamagedRecording

__all__ = ["read_object", "root_of"]


def root_of(attributes: Mapping[str, Any], *, trace_id: str, span_id: str, start_ns: int, end_ns: int) -> RootRecord:
    """Build a run's root record from the attributes of its root span. Raises: DamagedRecording."""
    get = attributes.get
    return RootRecord(
        run_id=str(get(names.RUN_ID, "")),
        app=str(get(names.APP, "")),
        trace_id=trace_id,
        span_id=span_id,
        start_ns=start_ns,
        end_ns=end_ns,
        outcome=str(get(names.OUTCOME, Outcome.OPEN.value)),
        env=read_object(get(names.ENV), names.ENV),
        manifest=read_object(get(names.MANIFEST), names.MANIFEST),
        replay_of=str(get(names.REPLAY_OF, "")),
        user_id=str(get(names.USER_ID, "")),
        session_id=str(get(names.SESSION_ID, "")),
    )


def read_object(text: object, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(str(text))
    except ValueError as exc:
        raise DamagedRecording(f"{where} is not JSON") from exc
    if not isinstance(value, dict):
        raise DamagedRecording(f"{where} is not a JSON object")
    return value
