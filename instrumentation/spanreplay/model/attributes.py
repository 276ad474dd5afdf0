"""The recording contract: names of span attributes, defined in one place.

A boundary span carries at most 20 attributes of ours. Values are strings unless noted.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "spanreplay"
"""Instrumentation scope of every span that spanreplay itself emits."""
SCHEMA_VERSION: Final = "1"

SCHEMA: Final = "spanreplay.schema"
RUN_ID: Final = "spanreplay.run_id"
"""UUIDv7 as 32 lower-case hexadecimal characters; also a resource attribute."""
SEQ: Final = "spanreplay.seq"
"""int: start order of this call in its run (Lamport clock); the root span has 0."""
END_SEQ: Final = "spanreplay.end_seq"
"""int: completion order (same clock)."""
JOINT: Final = "spanreplay.joint"
"""int: END_SEQ of the first call that completed in the same event loop iteration; absent if that is this call."""
CLOCKS: Final = "spanreplay.clocks"
"""JSON list of ints: when each part of a stream arrived, response first (same clock as END_SEQ)."""
PARENT: Final = "spanreplay.parent"
"""int: seq of the boundary call inside which this one was made; absent at top level."""
KIND: Final = "spanreplay.kind"
"""llm, embedding, tool, retriever, mcp, http, human, clock, random, compute; `run` on the root span."""
NAME: Final = "spanreplay.name"
EFFECT: Final = "spanreplay.effect"
LANE: Final = "spanreplay.lane"
INDEX: Final = "spanreplay.index"
"""int: n-th call of this boundary (kind, name) in this lane, from 0."""
CALL_ID: Final = "spanreplay.call_id"
KEY: Final = "spanreplay.key"
KEYSPEC: Final = "spanreplay.keyspec"
DIGESTS: Final = "spanreplay.digests"
"""JSON object: keyed digests of the parts of which the key is made (`digests.py`)."""
REQUEST: Final = "spanreplay.request"
RESPONSE: Final = "spanreplay.response"
OUTCOME: Final = "spanreplay.outcome"
CODE: Final = "spanreplay.code"
REDACTIONS: Final = "spanreplay.redactions"
READS: Final = "spanreplay.reads"
"""JSON list: the lane's reads of clock and random sources since its previous call (`runtime/reads.py`)."""
META: Final = "spanreplay.meta"
"""JSON object of strings and numbers: requested and answering model, fingerprint, parameters, usage."""
LEAF: Final = "spanreplay.leaf"
PREV: Final = "spanreplay.prev"

# Root span only
APP: Final = "spanreplay.app"
"""Name of the agent; Phoenix project of its runs."""
ENV: Final = "spanreplay.env"
"""JSON object: the environment (the eight moving parts, code, python)."""
UNIT: Final = "unit"
"""Member of ENV, a mapping: the process to which this unit belongs, and since when."""
UNIT_TRACE: Final = "trace"
"""Member of UNIT: the id of the W3C trace to which the request or job belongs, if it names one."""
UNITS_BEFORE: Final = "before"
"""Member of UNIT: the number of units that the process began before this one."""
REDACTION_KEY: Final = "redaction_key"
"""Member of ENV: fingerprint of the key that made the run's tokens."""
RESUMES: Final = "resumes"
"""Member of ENV: the run that this one resumes."""
MANIFEST: Final = "spanreplay.manifest"
"""JSON object, on the final root record only: counts, drops, truncations, root hash, stdout, exit."""
REPLAY_OF: Final = "spanreplay.replay_of"
"""run_id of the recording that this run replays."""
USER_ID: Final = "user.id"
SESSION_ID: Final = "session.id"

KIND_RUN: Final = "run"

# OpenInference resource attribute that names the Phoenix project
PROJECT: Final = "openinference.project.name"

SENT: Final = "sent"
"""Side of a message that the agent sent, in the response of a call in which both sides speak."""
