"""Render a verdict as one self-contained HTML file without scripts; light and dark."""

from __future__ import annotations

from typing import Final

from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.report import text
from spanreplay.report.code_line import causes, downstream
from spanreplay.report.html_parts import (
    escape_html,
    render_diff,
    render_facts,
    render_folded,
    render_list,
    render_page,
)
from spanreplay.report.shape import Divergence, Stdout, Verdict
from spanreplay.report.words import (
    MEANING,
    describe_ignored,
    describe_level,
    describe_message,
    describe_not_compared,
    describe_place,
    duration,
    facts,
    is_cut_short,
    plural,
    unchecked,
)

__all__ = ["render"]

CAUSES_MAX: Final = 50
DOWNSTREAM_MAX: Final = 200
DIFFS_MAX: Final = 50
ITEMS_MAX: Final = 100
_SIGN: Final = {"identical": "✔", "incomplete": "!"}


def _cause(cause: Divergence, title: str) -> str:
    kind = str(cause.get("kind") or "")
    diffs = cause.get("diff") or []
    parts = [
        f"<h2>{title}</h2>",
        f'<p class="what"><strong>{escape_html(describe_message(cause))}</strong></p>',
        f"<p>{escape_html(MEANING[kind])}</p>" if kind in MEANING else "",
        render_facts(
            [
                ("call", describe_place(cause).strip()),
                ("kind", kind),
                *facts(cause),
                ("recorded span", cause.get("recorded_span_id")),
                ("replay span", cause.get("replay_span_id")),
            ]
        ),
        *(render_diff(d) for d in diffs[:DIFFS_MAX]),
        f"<p>and {plural(len(diffs) - DIFFS_MAX, 'more difference')}</p>" if len(diffs) > DIFFS_MAX else "",
    ]
    return "<section>\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _causes(verdict: Verdict) -> list[str]:
    found, later = causes(verdict), downstream(verdict)
    parts = [_cause(found[0], "The cause")] if found else []
    if later:
        items = [f"{describe_place(d).strip()}: {describe_message(d)}" for d in later]
        parts.append(
            render_folded(f"{plural(len(later), 'further difference')} downstream", render_list(items, DOWNSTREAM_MAX))
        )
    others = found[1:]
    if others:
        shown = "\n".join(
            _cause(d, escape_html(describe_place(d).strip() or "divergence")) for d in others[:CAUSES_MAX]
        )
        left = len(others) - CAUSES_MAX
        shown += f"\n<p>and {left:,} more, see the JSON report</p>" if left > 0 else ""
        parts.append(render_folded(plural(len(others), "other divergence"), shown))
    return parts


def _output(verdict: Verdict, title: str, output: Stdout) -> str:
    if not output.get("compared") or output.get("equal") or is_cut_short(verdict):
        return ""
    lines = []
    for line in str(output.get("diff") or "").splitlines()[:ITEMS_MAX]:
        tag = {"-": "del", "+": "ins"}.get(line[:1], "span")
        lines.append(f"<{tag}>{escape_html(line)}</{tag}>")
    return f"<section>\n<h2>{title}</h2>\n<pre>" + "\n".join(lines) + "</pre>\n</section>"


def _denied(addresses: list[str]) -> str:
    if not addresses:
        return ""
    return f"<section>\n<h2>Connections denied</h2>\n{render_list(addresses, ITEMS_MAX)}\n</section>"


def _counts(verdict: Verdict) -> str:
    if not verdict["counts"]:
        return ""
    rows = (f'<tr><th scope="row">{escape_html(n)}</th><td>{c:,}</td></tr>' for n, c in verdict["counts"].items())
    return f"<section>\n<h2>Calls</h2>\n<table>\n{chr(10).join(rows)}\n</table>\n</section>"


def _runrender_facts(verdict: Verdict) -> str:
    exits, tokens, then = verdict["exit"], verdict["tokens"], verdict.get("recorded_duration_ms")
    rows: list[tuple[str, object]] = [
        ("agent", verdict.get("app")),
        ("run", verdict.get("run_id")),
        ("replay", verdict.get("replay_run_id")),
        ("time", duration(verdict["duration_ms"]) if "duration_ms" in verdict else ""),
        ("recorded in", duration(then) if then else ""),
    ]
    if exits.get("recorded") is not None:
        rows.append(("exit status", f"recorded {exits['recorded']}, now {exits.get('now')}"))
    if "recorded" in tokens:
        rows.append(("tokens", f"{tokens['recorded']:,} recorded, {tokens.get('live', 0):,} paid for live calls"))
    if verdict["verdict"] in ("identical", "incomplete"):
        rows.append(("could not be compared", unchecked(verdict)))
        rows.append(("not compared", describe_not_compared(verdict)))
    if describe_level(verdict):
        rows.append(("level", describe_level(verdict)))
    return f"<section>\n<h2>Run</h2>\n{render_facts(rows)}\n</section>"


def render(verdict: Verdict) -> str:
    """Render the whole page; all recorded values are escaped, and its content policy forbids scripts and requests."""
    word = verdict["verdict"]
    ignored = describe_ignored(verdict)
    line = text.render_verdict_line(verdict).plain.split(" ", 1)[-1]
    parts = [
        f'<header class="{word}"><h1><span aria-hidden="true">{_SIGN.get(word, "✘")}</span> {escape_html(word)}</h1>'
        f"<p>{escape_html(line)}</p></header>",
        f"<p>{escape_html(LIVE_NOTE)}</p>" if verdict["counts"].get("live") else "",
        f"<p>{escape_html(verdict.get('hint'))}</p>" if verdict.get("hint") else "",
        f"<section>\n<h2>Why</h2>\n{render_list([str(r) for r in verdict['reasons']], ITEMS_MAX)}\n</section>"
        if verdict["reasons"]
        else "",
        *_causes(verdict),
        _output(verdict, "Standard output", verdict["stdout"]),
        _output(verdict, "Standard error", verdict.get("stderr", {})),
        _denied([str(address) for address in verdict["sockets_denied"]]),
        f"<section>\n<h2>Ignored differences</h2>\n{render_list(ignored, ITEMS_MAX)}\n</section>" if ignored else "",
        _counts(verdict),
        _runrender_facts(verdict) if verdict.get("run_id") else "",
    ]
    title = f"{word}: {verdict.get('app') or 'replay'}"
    return render_page(title, parts)
