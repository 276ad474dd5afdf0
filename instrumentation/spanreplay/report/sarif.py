"""Render a verdict as SARIF 2.1.0: one result per cause, at its line of code; downstream differences are notes."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from spanreplay.model.escape import escape, shorten
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.model.version import VERSION
from spanreplay.report.code_line import CodeLine, causes, downstream, find_code_line, fingerprints
from spanreplay.report.shape import EXIT_STATUS, Divergence, Verdict
from spanreplay.report.words import (
    MEANING,
    describe_ignored,
    describe_message,
    describe_place,
    facts,
    first_difference,
    show_value,
)

__all__ = ["render"]

SCHEMA_URI: Final = "https://json.schemastore.org/sarif-2.1.0.json"
INFORMATION_URI: Final = "https://github.com/spanreplay/spanreplay"
RESULTS_MAX: Final = 1000
_SPANS: Final = ("recorded_span_id", "replay_span_id")
RELATED_MAX: Final = 20
DIFFS_MAX: Final = 5
_FINGERPRINT: Final = "spanreplay/v1"
_VERDICTS: Final = {
    "diverged": ("error", "the replay differs from the recording"),
    "incomplete": ("warning", "the recording is incomplete: it was replayed up to where it ends"),
    "tampered": ("error", "the recording was changed after it was written"),
    "suspended": ("note", "the run is waiting for a human again"),
    "over_budget": ("error", "live calls to models cost more than the plan allows"),
}
"""Verdict → level and meaning, for results without a divergence."""


def _text(content: str) -> dict[str, str]:
    # "](" forms an embedded link in SARIF (§3.11.6): recorded content must not become one.
    return {"text": re.sub(r"\](?=\()", "] ", content) or "(no message)"}


def _location(place: CodeLine, **more: Any) -> dict[str, Any]:
    artifact: dict[str, Any] = {"uri": place.uri}
    if not place.file.startswith("/"):
        artifact["uriBaseId"] = "%SRCROOT%"
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}},
    }
    if place.name:
        location["logicalLocations"] = [{"fullyQualifiedName": escape(place.name), "kind": "function"}]
    return {**location, **more}


def _message(divergence: Divergence, role: str) -> str:
    parts = [f"{role}{describe_place(divergence)}: {describe_message(divergence)}"]
    for diff in (divergence.get("diff") or [])[:DIFFS_MAX]:
        at = first_difference(diff)
        values = [f"{side} {show_value(value, at)}" for side, value in diff.items() if side in ("recorded", "now")]
        parts.append(f"{shorten(str(diff.get('path', '$')), 120)}: {', '.join(values)}")
    parts += [f"{label}: {content}" for label, content in facts(divergence) if label != "code"]
    return "\n".join(parts)


def _related(divergences: list[Divergence], role: str, folder: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for divergence in divergences:
        place = find_code_line(divergence, folder)
        if place is None or len(found) >= RELATED_MAX:
            continue
        message = f"{role}{describe_place(divergence)}"
        found.setdefault((place.uri, message), _location(place, id=len(found) + 1, message=_text(message)))
    return list(found.values())


def _result(
    divergence: Divergence, fingerprint: str, related: list[dict[str, Any]], *, is_cause: bool, folder: str
) -> dict[str, Any]:
    place = find_code_line(divergence, folder)
    result: dict[str, Any] = {
        "ruleId": escape(str(divergence.get("kind"))),
        "level": "error" if is_cause else "note",
        "message": _text(_message(divergence, "diverged" if is_cause else "downstream")),
        "locations": [_location(place)] if place else [],
        "fingerprints": {_FINGERPRINT: fingerprint},
        # The one fingerprint that GitHub reads.
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        "properties": {
            name: divergence[name]
            for name in ("boundary", "lane", "index", "seq", "call", "part", "turn", *_SPANS)
            if name in divergence
        },
    }
    if related:
        result["relatedLocations"] = related
    return result


def _results(verdict: Verdict, folder: str) -> list[dict[str, Any]]:
    found, later = causes(verdict), downstream(verdict)
    keys = fingerprints([*found, *later])
    before = _related(found[:1], "cause", folder)
    after = _related(later, "downstream", folder)
    results = [
        # Downstream differences are attributed to the first cause.
        _result(d, key, after if i == 0 else [], is_cause=True, folder=folder)
        for i, (d, key) in enumerate(zip(found, keys, strict=False))
    ]
    results += [
        _result(d, key, before, is_cause=False, folder=folder) for d, key in zip(later, keys[len(found) :], strict=True)
    ]
    word = verdict["verdict"]
    if word in _VERDICTS and (word != "diverged" or not results):
        level, meaning = _VERDICTS[word]
        reasons = [shorten(str(r), 200) for r in verdict["reasons"][:DIFFS_MAX]]
        whole = {"ruleId": word, "level": level, "message": _text("\n".join([meaning, *reasons])), "locations": []}
        results.insert(0, whole)
    return results[:RESULTS_MAX]


def _rules(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collect the rules that the results name, in order, and set each result's rule index."""
    names = list(dict.fromkeys(r["ruleId"] for r in results))
    for result in results:
        result["ruleIndex"] = names.index(result["ruleId"])
    verdicts = {word: meaning for word, (_, meaning) in _VERDICTS.items()}
    return [
        {
            "id": name,
            "shortDescription": {"text": MEANING.get(name) or verdicts.get(name) or name.replace("_", " ")},
            "defaultConfiguration": {"level": _VERDICTS.get(name, ("error", ""))[0]},
        }
        for name in names
    ]


def _invocation(verdict: Verdict) -> dict[str, Any]:
    word = verdict["verdict"]
    invocation: dict[str, Any] = {
        "executionSuccessful": word != "error",
        "exitCode": EXIT_STATUS[word],
        "exitCodeDescription": word,
    }
    if word == "error":
        message = "\n".join(filter(None, [str(verdict.get("error") or "the replay failed"), verdict.get("hint")]))
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": _text(escape(message, keep_lines=True))}
        ]
    return invocation


def render(verdict: Verdict, folder: str = "") -> str:
    """The SARIF log as JSON text; `folder` is the agent's directory, relative to the repository."""
    results = _results(verdict, folder)
    ignored = describe_ignored(verdict)[:RELATED_MAX]
    driver = {
        "name": "spanreplay",
        "version": VERSION,
        "informationUri": INFORMATION_URI,
        "rules": _rules(results),
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(verdict)],
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "verdict": verdict["verdict"],
            "run_id": verdict.get("run_id", ""),
            "replay_run_id": verdict.get("replay_run_id", ""),
            "counts": dict(verdict["counts"]),
            **({"live_note": LIVE_NOTE} if verdict["counts"].get("live") else {}),
            **({"ignored": ignored} if ignored else {}),
        },
    }
    return json.dumps({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"
