"""Render verdicts as JUnit XML: one suite per replay, one failed case per cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from spanreplay.model.escape import escape
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.report import text
from spanreplay.report.code_line import causes, downstream, find_code_line
from spanreplay.report.shape import Divergence, Verdict
from spanreplay.report.words import MEANING, describe_message, describe_place, describe_unexercised, facts, plural

__all__ = ["render", "render_all"]

CASES_MAX: Final = 100
DOWNSTREAM_MAX: Final = 50
# XML 1.0 can't represent these, even escaped; `escape` keeps them, because they don't control a terminal.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _safe(value: object) -> str:
    return _NOT_XML.sub(lambda m: f"\\u{ord(m.group()):04x}", escape(str(value), keep_lines=True))


def _add_case(suite: ET.Element, name: str, verdict: Verdict, time_s: float = 0) -> ET.Element:
    attributes = {
        "classname": f"spanreplay.{_safe(verdict.get('app') or 'agent')}",
        "name": _safe(name),
        "time": f"{time_s:.3f}",
    }
    return ET.SubElement(suite, "testcase", attributes)


def _add_outcome(case: ET.Element, tag: str, kind: str, message: str, content: str = "") -> None:
    outcome = ET.SubElement(case, tag, {"type": _safe(kind), "message": _safe(message)})
    outcome.text = _safe(content) or None


def _case_name(cause: Divergence) -> str:
    """The name of a cause's test case, stable across replays."""
    lane = f" (lane {cause['lane']}, index {cause.get('index', 0)})" if cause.get("lane") else ""
    return f"{cause.get('boundary') or 'call'}{lane} {cause.get('kind')}"


def _add_summary(suite: ET.Element, verdict: Verdict) -> None:
    counts, word = verdict["counts"], verdict["verdict"]
    case = _add_case(suite, "calls served from the recording", verdict, verdict.get("duration_ms", 0) / 1000)
    if word == "error":
        _add_outcome(
            case, "error", word, str(verdict.get("error") or "the replay failed"), str(verdict.get("hint", ""))
        )
    elif word in ("incomplete", "tampered", "over_budget"):
        message = text.render_verdict_line(verdict).plain
        _add_outcome(case, "error", word, message, "\n".join(map(str, verdict["reasons"])))
    elif word == "diverged" and not verdict["divergences"]:
        _add_outcome(case, "failure", word, "the replay diverged")
    elif word == "diverged" and not counts.get("served") and not counts.get("start"):
        _add_outcome(case, "skipped", "", "no call was served")
    shown = [f"{plural(counts.get('served', 0), 'call')} served, {counts.get('recorded', 0):,} recorded"]
    shown += [LIVE_NOTE] if counts.get("live") else []
    later = downstream(verdict)
    shown += [f"downstream{describe_place(d)}: {describe_message(d)}" for d in later[:DOWNSTREAM_MAX]]
    if len(later) > DOWNSTREAM_MAX:
        shown.append(f"and {len(later) - DOWNSTREAM_MAX:,} more downstream")
    if word != "error":
        ET.SubElement(case, "system-out").text = _safe("\n".join(shown))


def _add_causes(suite: ET.Element, verdict: Verdict) -> None:
    found = causes(verdict)
    for cause in found[:CASES_MAX]:
        case = _add_case(suite, _case_name(cause), verdict)
        place = find_code_line(cause)
        if place is not None:
            case.set("file", _safe(place.file))
            case.set("line", str(place.line))
        lines = [f"diverged{describe_place(cause)}"]
        lines += [MEANING[cause["kind"]]] if cause.get("kind") in MEANING else []
        lines += [line.plain for diff in (cause.get("diff") or []) for line in text.render_diff(diff)]
        lines += [f"{label:<9} {content}" for label, content in facts(cause)]
        _add_outcome(case, "failure", str(cause.get("kind")), describe_message(cause), "\n".join(lines))
    if len(found) > CASES_MAX:
        _add_outcome(
            _add_case(suite, "more divergences", verdict),
            "failure",
            "diverged",
            f"{len(found) - CASES_MAX:,} more are in the JSON report",
        )


def _add_checks(suite: ET.Element, verdict: Verdict) -> None:
    """Add cases for output and exit status; a difference in them is a cause and already has its own case."""
    if verdict["verdict"] in ("error", "tampered"):
        return
    stdout, exits = verdict["stdout"], verdict["exit"]
    is_compared = {
        "standard output": bool(stdout.get("compared")),
        "exit status": exits.get("recorded") is not None,
    }
    is_equal = {
        "standard output": bool(stdout.get("equal")),
        "exit status": exits.get("recorded") == exits.get("now"),
    }
    for name in is_compared:
        if is_compared[name] and not is_equal[name]:
            continue
        case = _add_case(suite, f"{name} as recorded", verdict)
        if not is_compared[name]:
            _add_outcome(case, "skipped", "", f"{name} could not be compared")
    for line in describe_unexercised(verdict)[:CASES_MAX]:
        case = _add_case(suite, f"not exercised: {line.partition(' ')[0]}", verdict)
        _add_outcome(case, "skipped", "", f"not exercised: {line}")


def _properties(verdict: Verdict) -> dict[str, object]:
    named: dict[str, object] = {"verdict": verdict["verdict"]}
    named |= {"run_id": verdict.get("run_id", ""), "replay_run_id": verdict.get("replay_run_id", "")}
    named |= {"live_note": LIVE_NOTE} if verdict["counts"].get("live") else {}
    return named | {f"calls.{name}": count for name, count in verdict["counts"].items()}


def render(verdict: Verdict) -> str:
    """The XML document, with the text report as the suite's output."""
    return render_all([verdict])


def render_all(verdicts: Sequence[Verdict]) -> str:
    """One XML document with a suite for each verdict."""
    root = ET.Element("testsuites", {"name": "spanreplay"})
    suites = [_build_suite(verdict) for verdict in verdicts]
    for name in suites[0].keys() if suites else ():
        if name not in ("name", "time"):
            root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.set("time", f"{sum(verdict.get('duration_ms', 0) for verdict in verdicts) / 1000:.3f}")
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _build_suite(verdict: Verdict) -> ET.Element:
    suite = ET.Element("testsuite", {"name": _safe(f"spanreplay {verdict.get('app') or ''}".strip())})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(verdict).items():
        ET.SubElement(properties, "property", {"name": _safe(name), "value": _safe(value)})
    _add_summary(suite, verdict)
    _add_causes(suite, verdict)
    _add_checks(suite, verdict)
    ET.SubElement(suite, "system-out").text = _safe(text.render(verdict).plain)
    totals = {"tests": len(suite.findall("testcase"))}
    totals |= {
        f"{tag}s" if tag != "skipped" else tag: len(suite.findall(f"testcase/{tag}"))
        for tag in ("failure", "error", "skipped")
    }
    for name, count in totals.items():
        suite.set(name, str(count))
    suite.set("time", f"{verdict.get('duration_ms', 0) / 1000:.3f}")
    return suite
