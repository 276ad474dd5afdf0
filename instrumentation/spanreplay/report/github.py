"""Render a verdict for GitHub Actions: workflow commands that annotate the code, and a Markdown step summary."""

from __future__ import annotations

import html
import re
from typing import Final

from spanreplay.model.escape import escape, shorten
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.report import text
from spanreplay.report.code_line import causes, downstream, find_code_line
from spanreplay.report.shape import Divergence, Unexercised, Verdict
from spanreplay.report.words import (
    LINE_CHARACTERS_MAX,
    describe_message,
    describe_place,
    describe_unexercised,
    facts,
    first_difference,
    plural,
    show_value,
)

__all__ = ["render", "render_summary"]

ANNOTATIONS_MAX: Final = 10
"""GitHub shows ten errors per step."""
DIFFS_MAX: Final = 3
DOWNSTREAM_MAX: Final = 50
_LEVEL: Final = {"identical": "notice", "incomplete": "warning"}
_SIGN: Final = {"identical": "✅", "incomplete": "⚠️"}
_PUNCTUATION: Final = re.compile(r"[!-/:-@\[-`{-~]")


def _escape_data(content: str) -> str:
    return content.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(content: str) -> str:
    return _escape_data(content).replace(":", "%3A").replace(",", "%2C")


def _command(level: str, message: str, **properties: str) -> str:
    # https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts
    shown = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items() if value)
    return f"::{level} {shown}::{_escape_data(message)}"


def _annotate(cause: Divergence, folder: str) -> str:
    place = find_code_line(cause, folder)
    where = {"file": escape(place.file), "line": str(place.line)} if place else {}
    lines = [describe_message(cause)]
    for diff in (cause.get("diff") or [])[:DIFFS_MAX]:
        at = first_difference(diff)
        lines.append(shorten(str(diff.get("path", "$")), LINE_CHARACTERS_MAX))
        lines += [f"  {side:<8} {show_value(value, at)}" for side, value in diff.items() if side in ("recorded", "now")]
    lines += [f"{label}: {content}" for label, content in facts(cause) if label != "code"]
    return _command("error", "\n".join(lines), **where, title=f"spanreplay: diverged{describe_place(cause)}")


def render(verdict: Verdict, folder: str = "") -> str:
    """Workflow commands, one per line; `folder` is the agent's directory, relative to the repository."""
    found = causes(verdict) if verdict["verdict"] == "diverged" else []
    live = [LIVE_NOTE] if verdict["counts"].get("live") else []
    changed = [_warn_unexercised(each, line, folder) for each, line in _unexercised(verdict)]
    if not found:
        level = _LEVEL.get(verdict["verdict"], "error")
        reasons = [shorten(str(r), LINE_CHARACTERS_MAX) for r in verdict["reasons"][:DIFFS_MAX]]
        hint = [f"hint: {shorten(str(verdict['hint']), LINE_CHARACTERS_MAX)}"] if verdict.get("hint") else []
        message = "\n".join([text.render_verdict_line(verdict).plain, *live, *reasons, *hint])
        return _command(level, message, title=f"spanreplay: {verdict['verdict']}") + "\n" + "".join(changed)
    lines = [_annotate(cause, folder) for cause in found[:ANNOTATIONS_MAX]]
    lines += [_command("notice", note, title="spanreplay: live calls") for note in live]
    if len(found) > ANNOTATIONS_MAX:
        more = plural(len(found) - ANNOTATIONS_MAX, "more divergence")
        lines.append(_command("notice", f"{more}, see the step summary", title="spanreplay"))
    return "\n".join(lines) + "\n" + "".join(changed)


def _unexercised(verdict: Verdict) -> list[tuple[Unexercised, str]]:
    rows = verdict.get("unexercised") or []
    return list(zip(rows, describe_unexercised(verdict), strict=True))[:ANNOTATIONS_MAX]


def _warn_unexercised(each: Unexercised, line: str, folder: str) -> str:
    place = find_code_line({"code": each.get("code", "")}, folder)
    where = {"file": escape(place.file), "line": str(place.line)} if place else {}
    return _command("warning", f"not exercised: {line}", **where, title="spanreplay: not exercised") + "\n"


def _code(content: str) -> str:
    """Content as inline code, with all punctuation escaped: no Markdown, HTML, links or mentions."""
    shown = _PUNCTUATION.sub(lambda m: f"&#{ord(m.group())};", shorten(content, LINE_CHARACTERS_MAX))
    return f"<code>{shown}</code>"


def _block(content: str) -> str:
    """Content as a block: Markdown is not interpreted in HTML's <pre>."""
    return f"<pre>\n{html.escape(content)}\n</pre>"


def render_summary(verdict: Verdict, folder: str = "") -> str:
    """The step summary in Markdown: the text report, a table of causes, and the downstream differences, folded."""
    word = verdict["verdict"]
    lines = [f"### {_SIGN.get(word, '❌')} spanreplay: {word}", ""]
    if verdict.get("app") or verdict.get("run_id"):
        lines += [f"{_code(str(verdict.get('app') or 'agent'))} run {_code(str(verdict.get('run_id', '')))}", ""]
    lines += [_block(text.render(verdict).plain), ""]
    found = causes(verdict)
    if found:
        lines += ["| Call | What differs | Code |", "| --- | --- | --- |"]
        for cause in found[:ANNOTATIONS_MAX]:
            place = find_code_line(cause, folder)
            code = _code(f"{place.file}:{place.line}") if place else ""
            lines.append(f"| {_code(str(cause.get('boundary') or ''))} | {_code(describe_message(cause))} | {code} |")
        lines.append("")
    later = downstream(verdict)
    if later:
        shown = [f"{describe_place(d).strip()}: {describe_message(d)}" for d in later[:DOWNSTREAM_MAX]]
        if len(later) > DOWNSTREAM_MAX:
            shown.append(f"and {len(later) - DOWNSTREAM_MAX:,} more")
        lines += [f"<details><summary>{plural(len(later), 'further difference')} downstream</summary>", ""]
        lines += [_block("\n".join(shown)), "", "</details>", ""]
    return "\n".join(lines)
