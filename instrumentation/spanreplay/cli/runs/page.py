"""Render a run as one self-contained HTML page without scripts, to send to anyone.

Each call has its own address (`run.html#call-7`), which opens that call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from spanreplay.cli.runs.preview import answer_of, asked_of, chunk_text, conversation_of, facts_of
from spanreplay.cli.runs.runs import parse_json
from spanreplay.cli.runs.times import format_duration, format_iso
from spanreplay.model.attributes import UNIT, UNIT_TRACE
from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.escape import shorten
from spanreplay.model.lane_names import name_lane
from spanreplay.replayer.compare.not_compared import STDERR, STDOUT
from spanreplay.report.html_parts import escape_html, render_facts, render_folded, render_list, render_page

__all__ = ["PAGE_CHARACTERS_MAX", "TEXT_CHARACTERS_MAX", "render_run"]

TEXT_CHARACTERS_MAX: Final = 64_000
"""Characters of one request or response that are shown."""
PAGE_CHARACTERS_MAX: Final = 16_000_000
"""Characters of all requests and responses in the page; calls beyond this limit are listed without content."""
_LINE_CHARACTERS_MAX: Final = 140
_REASONS_MAX: Final = 20
_DEPTH_MAX: Final = 50
_STYLES: Final = {"ok": "identical", "incomplete": "incomplete"}
_TITLES: Final = {STDOUT: "Standard output", STDERR: "Standard error"}
_LINK_SCHEMES: Final = ("https://", "http://")


def render_run(recording: Recording, calls: Sequence[CallRecord], links: Mapping[str, str]) -> str:
    """Render a page with these calls of the run; `links` maps span ids to pages elsewhere."""
    parts = [_render_head(recording, links.get(recording.root.span_id, "")), _render_reasons(recording)]
    left_out = len(recording.calls) - len(calls)
    title = f"{len(calls):,} of {len(recording.calls):,} calls" if left_out else "Calls"
    parts.append(f"<section>\n<h2>{title}</h2>\n{_Calls(calls, links).render()}\n</section>")
    parts += [_render_output(recording, name) for name in (STDOUT, STDERR)]
    return render_page(f"{recording.root.app or 'run'} {recording.run_id[:13]}", parts)


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────
def _render_head(recording: Recording, link: str) -> str:
    root = recording.root
    state = root.outcome if recording.completeness().is_complete else "incomplete"
    argv, sha = root.env.get("argv"), root.env.get("git_sha")
    unit = root.env.get(UNIT)
    rows: list[tuple[str, object]] = [
        ("run", recording.run_id),
        ("started", format_iso(root.start_ns)),
        ("took", format_duration(root.end_ns - root.start_ns) if root.end_ns > root.start_ns else ""),
        ("user", root.user_id),
        ("session", root.session_id),
        ("command", " ".join(map(str, argv)) if isinstance(argv, list) else ""),
        ("commit", sha if isinstance(sha, str) else ""),
        ("Python", root.env.get("python")),
        ("trace", unit.get(UNIT_TRACE) if isinstance(unit, dict) else ""),
        ("replay of", root.replay_of),
        ("tokens", _count_tokens(recording)),
    ]
    return (
        f'<header class="{_STYLES.get(state, "diverged")}"><h1>{escape_html(root.app or "run")}</h1>'
        f"<p>{escape_html(state)}, {len(recording.calls):,} calls</p></header>\n{render_facts(rows)}\n"
        f"{_render_link(link)}"
    )


def _count_tokens(recording: Recording) -> str:
    counts = [[call.meta.get(name) for call in recording.calls] for name in ("tokens_in", "tokens_out")]
    given, made = (sum(each for each in count if isinstance(each, int)) for count in counts)
    return f"{given:,} in, {made:,} out" if given or made else ""


def _render_reasons(recording: Recording) -> str:
    reasons = recording.completeness().reasons
    if not reasons:
        return ""
    return f"<section>\n<h2>Not recorded</h2>\n{render_list(list(reasons), _REASONS_MAX)}\n</section>"


def _render_output(recording: Recording, name: str) -> str:
    """The recorded output of the run."""
    printed = recording.root.manifest.get(name)
    text = printed.get("text") if isinstance(printed, dict) else ""
    if not isinstance(text, str) or not text:
        return ""
    return f"<section>\n<h2>{_TITLES[name]}</h2>\n{_render_text(text)}\n</section>"


def _render_text(text: str) -> str:
    shown = text[:TEXT_CHARACTERS_MAX]
    more = f"\n… and {len(text) - len(shown):,} more characters" if len(shown) < len(text) else ""
    return f"<pre>{escape_html(shown + more, keep_lines=True)}</pre>"


def _render_link(link: str) -> str:
    if not link.startswith(_LINK_SCHEMES):
        return ""
    return f'<p><a href="{escape_html(link)}">in Phoenix</a></p>'


# ── its calls ───────────────────────────────────────────────────────────────────────────────────────
class _Calls:
    """The calls of a run as nested `<details>`, in the order in which they started."""

    def __init__(self, calls: Sequence[CallRecord], links: Mapping[str, str]) -> None:
        self._links = links
        self._characters = PAGE_CHARACTERS_MAX
        self._below: dict[int, list[CallRecord]] = {}
        shown: set[int] = set()
        for call in calls:
            above = call.parent if call.parent in shown else None
            self._below.setdefault(above or 0, []).append(call)
            shown.add(call.seq)

    def render(self) -> str:
        """Render all calls; says so if content beyond the limit was left out."""
        shown = self._render_below(0, 0)
        if self._characters > 0:
            return shown or "<p>none</p>"
        said = f"<p>Requests and responses beyond {PAGE_CHARACTERS_MAX:,} characters are left out of this page.</p>"
        return f"{said}\n{shown}"

    def _render_below(self, seq: int, depth: int) -> str:
        if depth > _DEPTH_MAX:
            return "<p>Calls that lie deeper are left out of this page.</p>"
        return "\n".join(self._render_call(call, depth) for call in self._below.get(seq, ()))

    def _render_call(self, call: CallRecord, depth: int) -> str:
        name, link = f"call-{call.number}", self._links.get(call.span_id, "")
        return (
            f"<details><summary>{_render_line(call)}</summary>\n"
            f'<div id="{name}"><p><a href="#{name}">#{name}</a></p>\n'
            f"{_render_call_facts(call)}\n{_render_link(link)}\n{self._render_content(call)}"
            f"</div>\n{self._render_below(call.seq, depth + 1)}\n</details>"
        )

    def _render_content(self, call: CallRecord) -> str:
        if self._characters <= 0:
            return ""
        parts = []
        said = conversation_of(call)
        if said:
            messages = "".join(f"<dt>{escape_html(role)}</dt><dd>{self._render_text(text)}</dd>" for role, text in said)
            parts.append(f"<h3>conversation</h3>\n<dl>{messages}</dl>")
        answer = answer_of(call)
        if said and answer:
            parts.append(f"<h3>answer</h3>\n{self._render_text(answer)}")
        recorded = f"<h3>request</h3>\n{self._render_text(_pretty(call.request) or '(none)')}"
        response = _pretty(call.response) or "(none: the call did not end)"
        recorded += f"\n<h3>response</h3>\n{self._render_text(response)}"
        joined = chunk_text(parse_json(call.response))
        if joined and not said:
            recorded += f"\n<h3>response text</h3>\n{self._render_text(_pretty(joined))}"
        parts.append(render_folded("as recorded", recorded) if said else recorded)
        return "\n".join(parts)

    def _render_text(self, text: str) -> str:
        self._characters -= min(len(text), TEXT_CHARACTERS_MAX)
        return _render_text(text)


def _render_line(call: CallRecord) -> str:
    """One call's summary: number, boundary, outcome, duration, request and answer."""
    took = format_duration(call.end_ns - call.start_ns) if call.end_ns > call.start_ns else ""
    outcome = "" if call.outcome == Outcome.OK.value else f' <em class="failed">{escape_html(call.outcome)}</em>'
    facts = "  ".join(part for part in (*facts_of(call), took) if part)
    lines = [
        f"<b>{call.number}</b> <code>{escape_html(call.boundary)}</code>{outcome} <small>{escape_html(facts)}</small>"
    ]
    for mark, text in (("→", asked_of(call)), ("←", answer_of(call))):
        if text:
            lines.append(f"<small>{mark} {escape_html(shorten(text, _LINE_CHARACTERS_MAX))}</small>")
    return "<br>".join(lines)


def _render_call_facts(call: CallRecord) -> str:
    return render_facts(
        [
            ("lane", name_lane(call.lane)),
            ("effect", call.effect),
            ("code", call.code),
            ("redacted", ", ".join(f"{rule} {count}" for rule, count in sorted(call.redactions.items()))),
            ("span", call.span_id),
        ]
    )


def _pretty(text: str) -> str:
    value = parse_json(text)
    if value is None:
        return text
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
