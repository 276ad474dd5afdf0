"""The root span of a run: its statements about the run as a whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from spanreplay.model import attributes as names
from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ConfigError
from spanreplay.model.json_text import dump
from spanreplay.recording.root_record import root_of
from spanreplay.runtime.process import hash_secret
from spanreplay.runtime.who import Who

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.answers import Resolver

_log: Final = logging.getLogger(__name__)


class Described(Protocol):
    """The part of a run that its root span describes."""

    run_id: str
    app: str
    start_ns: int
    span_context: SpanContext
    environment: Mapping[str, Any]
    redactor: RunRedactor
    resolver: Resolver
    who: Who


def build_root_attributes(
    run: Described, outcome: Outcome, manifest: Mapping[str, Any], *, is_replay: bool
) -> dict[str, Any]:
    """The attributes of a run's root span, redacted; a manifest makes it the final one."""
    redactor = run.redactor
    environment = {**redactor.value(dict(run.environment)), names.REDACTION_KEY: redactor.fingerprint}
    environment[names.PROCESS_NUMBER] = os.getpid()
    if run.resolver.keeps:
        environment.update(guard.guarded("the secret of hashes", hash_secret.describe, redactor) or {})
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
    if is_replay:
        attributes[names.REPLAY_OF] = run.resolver.answers.recording.run_id
    if run.who.user:
        attributes[names.USER_ID] = redactor.text(run.who.user)
    if run.who.session:
        attributes[names.SESSION_ID] = redactor.text(run.who.session)
    return attributes


def sign_root(run: Described, attributes: dict[str, Any], end_ns: int, key_file: str) -> None:
    """Add the run's signature, or the reason for its absence, to the manifest of its final root span."""
    from spanreplay.recording.seal.signing import MEMBER, sign

    root = root_of(
        attributes,
        trace_id=f"{run.span_context.trace_id:032x}",
        span_id=f"{run.span_context.span_id:016x}",
        start_ns=run.start_ns,
        end_ns=end_ns,
    )
    try:
        signature = sign(root, key_file)
    except ConfigError as exc:
        signature = {"error": str(exc)}
        _log.warning("run %s is not signed: %s", run.run_id, exc)
    attributes[names.MANIFEST] = dump({**root.manifest, MEMBER: signature})
