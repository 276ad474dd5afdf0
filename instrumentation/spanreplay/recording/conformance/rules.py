"""The rules that the spans of a replayable run keep, as one table; pure.

The service and every reader of recordings rely on them. A rule says what it found, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from spanreplay.recording.conformance import call_rules, run_rules
from spanreplay.recording.conformance.exported import ExportedRun
from spanreplay.recording.conformance.finding import Finding

__all__ = ["FINDINGS_MAX", "RULES", "Judged", "Rule", "judge"]

FINDINGS_MAX: Final = 20
"""Findings that are listed for each rule; more are counted."""


@dataclass(frozen=True)
class Rule:
    """One rule: its name, what it promises to readers, how to keep it, and the check that finds where it is broken."""

    name: str
    promise: str
    fix: str
    check: Callable[[ExportedRun], Iterator[Finding]]


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "schema",
        "each span states the version of the contract",
        'set spanreplay.schema to the text "1" on every span',
        call_rules.check_schema,
    ),
    Rule(
        "run",
        "each span names its run, by one id in the whole run",
        "set spanreplay.run_id on every span, or on the resource of a process with one run, to a UUIDv7 as "
        "32 lower-case hexadecimal characters",
        run_rules.check_run,
    ),
    Rule(
        "names",
        "each attribute that begins with spanreplay. is one of the contract",
        "correct its spelling, or give attributes of your own another prefix",
        call_rules.check_names,
    ),
    Rule(
        "types",
        "numbers are integers, and everything else is text",
        "JSON values are set as text; numbers as integers, not as floats or text",
        call_rules.check_types,
    ),
    Rule(
        "whole",
        "each span has an id of its own and both times, and the SDK has cut nothing off",
        "raise the limits of your SDK for the number and the length of attributes, and export each span once, ended",
        run_rules.check_whole,
    ),
    Rule(
        "trace",
        "all spans of a run are of one trace",
        "start the spans of calls in the context of the run's root span",
        run_rules.check_trace,
    ),
    Rule(
        "root",
        "one span of kind run states the name of the agent and the outcome of the run",
        'export one root span when the run ends: spanreplay.kind "run", spanreplay.seq 0, spanreplay.app, '
        "spanreplay.outcome ok, error or cancelled",
        run_rules.check_root,
    ),
    Rule(
        "manifest",
        "the root span states how many calls the run has, and they are all here",
        'set spanreplay.manifest to JSON with the number of calls, {"calls": 2}, and flush the exporter before the '
        "process ends",
        run_rules.check_manifest,
    ),
    Rule(
        "complete",
        "nothing that the run did is missing",
        "the run itself states what it lacks; record it again without that",
        run_rules.check_complete,
    ),
    Rule(
        "kind",
        "the kind of each call is known",
        "use llm, embedding, tool, retriever, mcp, http, human, clock, random or compute",
        call_rules.check_kind,
    ),
    Rule(
        "name",
        "each call has a name",
        "set spanreplay.name to a name that is the same in every run: of the API, or of the tool",
        call_rules.check_name,
    ),
    Rule(
        "effect",
        "the effect of each call on the world is known",
        "use pure, read, write or irreversible",
        call_rules.check_effect,
    ),
    Rule(
        "outcome",
        "each call has ended, and its outcome is known",
        "use ok, error or cancelled",
        call_rules.check_outcome,
    ),
    Rule(
        "clock",
        "starts and ends of calls are in one order",
        "take spanreplay.seq when a call starts and spanreplay.end_seq when it ends from one counter of the run that "
        "begins with 1 and gives no value twice",
        run_rules.check_clock,
    ),
    Rule(
        "place",
        "each call has a place that it will have in a replay, too",
        "set spanreplay.lane to the name of the logical thread, such as main, and spanreplay.index to the number of "
        "earlier calls with this kind and name in this lane",
        run_rules.check_place,
    ),
    Rule(
        "parent",
        "a call inside another one names it",
        "set spanreplay.parent to the seq of the call around it; leave it out at the top level",
        run_rules.check_parent,
    ),
    Rule(
        "payload",
        "requests and responses are JSON",
        "set spanreplay.request and spanreplay.response to JSON text; an outcome ok has a response, which may be null",
        call_rules.check_payload,
    ),
    Rule(
        "objects",
        "the other structured attributes are JSON of the stated shape",
        "meta, redactions, digests, env and manifest are JSON objects, reads is a list, clocks a list of integers",
        call_rules.check_objects,
    ),
    Rule(
        "key",
        "equal requests have equal keys",
        "set spanreplay.key to 64 lower-case hexadecimal characters and spanreplay.keyspec to the way in which it was "
        "made, such as request/1: SHA-256 of the canonical JSON (RFC 8785) of kind, name and request",
        run_rules.check_key,
    ),
    Rule(
        "seal",
        "if the manifest states a root hash, the calls have it",
        "leave out root and leaves, or compute them as spanreplay does; what was changed later is found here, too",
        run_rules.check_seal,
    ),
    Rule(
        "secrets",
        "no value has the form of a known key or password",
        "redact before you make the key of a call and before you export it",
        call_rules.check_secrets,
    ),
)


@dataclass(frozen=True)
class Judged:
    """The findings of one rule; `more` counts those beyond FINDINGS_MAX."""

    rule: Rule
    findings: tuple[Finding, ...]
    more: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether the run keeps the rule."""
        return not self.findings


def judge(run: ExportedRun) -> tuple[Judged, ...]:
    """Judge a run by every rule."""
    judged = []
    for rule in RULES:
        found = list(rule.check(run))
        judged.append(Judged(rule, tuple(found[:FINDINGS_MAX]), max(0, len(found) - FINDINGS_MAX)))
    return tuple(judged)
