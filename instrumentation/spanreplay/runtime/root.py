"""The root span of a run: what it says about the run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome
from spanreplay.model.json_text import dump
from spanreplay.runtime.who import Who

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.answers import Answers


class Described(Protocol):
    """A run, as far as its root span describes it."""

    run_id: str
    app: str
    environment: Mapping[str, Any]
    redactor: RunRedactor
    session: Answers | None
    who: Who


def build_root_attributes(
    run: Described, outcome: Outcome, manifest: Mapping[str, Any], *, is_replay: bool
) -> dict[str, Any]:
    """The attributes of a run's root span, redacted; a manifest makes it the final one."""
    redactor = run.redactor
    environment = {**redactor.value(dict(run.environment)), names.REDACTION_KEY: redactor.fingerprint}
    attributes: dict[str, Any] = {
        names.SCHEMA: names.SCHEMA_VERSION,
        names.RUN_ID: run.run_id,
        names.SEQ: 0,
        names.KIND: names.KIND_RUN,
        names.NAME: run.app,
        names.APP: run.app,
        names.OUTCOME: outcome.value,
        names.ENV: dump(environment),
    }
    if manifest:
        attributes[names.MANIFEST] = dump(manifest)
    if is_replay and run.session is not None:
        attributes[names.REPLAY_OF] = run.session.recording.run_id
    if run.who.user:
        attributes[names.USER_ID] = redactor.text(run.who.user)
    if run.who.session:
        attributes[names.SESSION_ID] = redactor.text(run.who.session)
    return attributes
