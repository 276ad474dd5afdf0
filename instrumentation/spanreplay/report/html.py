"""A verdict as one HTML file that loads nothing and runs nothing; light and dark."""

from __future__ import annotations

import base64
import difflib
import hashlib
import html
import json
import re
from typing import Any, Final

from spanreplay.model.escape import escape
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.report import text
from spanreplay.report.html_style import STYLE
from spanreplay.report.place import causes, downstream
from spanreplay.report.shape import Diff, Divergence, Stdout, Verdict
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
VALUE_CHARACTERS_MAX: Final = 2000
WORDS_EXACT_MAX: Final = 400
ITEMS_MAX: Final = 100
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_SIGN: Final = {"identical": "✔", "incomplete": "!"}


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _esc(content: object, *, keep_lines: bool = False) -> str:
    return html.escape(escape(str(content), keep_lines=keep_lines))


def _as_text(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return shown if len(shown) <= VALUE_CHARACTERS_MAX else shown[:VALUE_CHARACTERS_MAX] + "…"


def _marked(pieces: list[tuple[str, bool]]) -> str:
    """Pieces of a text as HTML, those that differ marked."""
    shown = ((_esc(piece, keep_lines=True), differs) for piece, differs in pieces if piece)
    return "".join(f"<mark>{piece}</mark>" if differs else piece for piece, differs in shown)


def _side_by_side(recorded: str, now: str) -> tuple[str, str]:
    """Both texts as HTML, with what is only in one of them marked."""
    before, after = _WORDS.findall(recorded), _WORDS.findall(now)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(after) > WORDS_EXACT_MAX)
    left: list[tuple[str, bool]] = []
    right: list[tuple[str, bool]] = []
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        left.append(("".join(before[a:a_end]), tag != "equal"))
        right.append(("".join(after[b:b_end]), tag != "equal"))
    return _marked(left), _marked(right)


def _diff(diff: Diff) -> str:
    recorded, now = diff.get("recorded", ""), diff.get("now", "")
    if isinstance(recorded, str) and isinstance(now, str):
        left, right = _side_by_side(_as_text(recorded), _as_text(now))
    else:
        left, right = _marked([(_as_text(recorded), True)]), _marked([(_as_text(now), True)])
    return (
        f"<h3><code>{_esc(diff.get('path', '$'))}</code></h3>\n"
        '<div class="sides">\n'
        f'<figure class="then"><figcaption>recorded</figcaption><pre>{left}</pre></figure>\n'
        f'<figure class="now"><figcaption>now</figcaption><pre>{right}</pre></figure>\n'
        "</div>"
    )


def _facts(rows: list[tuple[str, object]]) -> str:
    shown = [f"<dt>{_esc(name)}</dt><dd>{_esc(value)}</dd>" for name, value in rows if value not in ("", None)]
    return f"<dl>\n{chr(10).join(shown)}\n</dl>" if shown else ""


def _cause(cause: Divergence, title: str) -> str:
    kind = str(cause.get("kind") or "")
    diffs = cause.get("diff") or []
    parts = [
        f"<h2>{title}</h2>",
        f'<p class="what"><strong>{_esc(describe_message(cause))}</strong></p>',
        f"<p>{_esc(MEANING[kind])}</p>" if kind in MEANING else "",
        _facts(
            [
                ("call", describe_place(cause).strip()),
                ("kind", kind),
                *facts(cause),
                ("recorded span", cause.get("recorded_span_id")),
                ("replay span", cause.get("replay_span_id")),
            ]
        ),
        *(_diff(d) for d in diffs[:DIFFS_MAX]),
        f"<p>and {plural(len(diffs) - DIFFS_MAX, 'more difference')}</p>" if len(diffs) > DIFFS_MAX else "",
    ]
    return "<section>\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n{content}\n</details>"


def _list(items: list[str], items_max: int) -> str:
    more = [f"and {len(items) - items_max:,} more"] if len(items) > items_max else []
    return "<ul>\n" + "\n".join(f"<li>{_esc(item)}</li>" for item in [*items[:items_max], *more]) + "\n</ul>"


def _causes(verdict: Verdict) -> list[str]:
    found, later = causes(verdict), downstream(verdict)
    parts = [_cause(found[0], "The cause")] if found else []
    if later:
        items = [f"{describe_place(d).strip()}: {describe_message(d)}" for d in later]
        parts.append(_folded(f"{plural(len(later), 'further difference')} downstream", _list(items, DOWNSTREAM_MAX)))
    others = found[1:]
    if others:
        shown = "\n".join(_cause(d, _esc(describe_place(d).strip() or "divergence")) for d in others[:CAUSES_MAX])
        left = len(others) - CAUSES_MAX
        shown += f"\n<p>and {left:,} more, see the JSON report</p>" if left > 0 else ""
        parts.append(_folded(plural(len(others), "other divergence"), shown))
    return parts


def _output(verdict: Verdict, title: str, output: Stdout) -> str:
    if not output.get("compared") or output.get("equal") or is_cut_short(verdict):
        return ""
    lines = []
    for line in str(output.get("diff") or "").splitlines()[:ITEMS_MAX]:
        tag = {"-": "del", "+": "ins"}.get(line[:1], "span")
        lines.append(f"<{tag}>{_esc(line)}</{tag}>")
    return f"<section>\n<h2>{title}</h2>\n<pre>" + "\n".join(lines) + "</pre>\n</section>"


def _counts(verdict: Verdict) -> str:
    if not verdict["counts"]:
        return ""
    rows = (f'<tr><th scope="row">{_esc(n)}</th><td>{c:,}</td></tr>' for n, c in verdict["counts"].items())
    return f"<section>\n<h2>Calls</h2>\n<table>\n{chr(10).join(rows)}\n</table>\n</section>"


def _run_facts(verdict: Verdict) -> str:
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
    return f"<section>\n<h2>Run</h2>\n{_facts(rows)}\n</section>"


def render(verdict: Verdict) -> str:
    """The whole page; every recorded value is escaped, and the page's policy forbids scripts and requests."""
    word = verdict["verdict"]
    ignored = describe_ignored(verdict)
    line = text.render_verdict_line(verdict).plain.split(" ", 1)[-1]
    parts = [
        f'<header class="{word}"><h1><span aria-hidden="true">{_SIGN.get(word, "✘")}</span> {_esc(word)}</h1>'
        f"<p>{_esc(line)}</p></header>",
        f"<p>{_esc(LIVE_NOTE)}</p>" if verdict["counts"].get("live") else "",
        f"<p>{_esc(verdict.get('hint'))}</p>" if verdict.get("hint") else "",
        f"<section>\n<h2>Why</h2>\n{_list([str(r) for r in verdict['reasons']], ITEMS_MAX)}\n</section>"
        if verdict["reasons"]
        else "",
        *_causes(verdict),
        _output(verdict, "Standard output", verdict["stdout"]),
        _output(verdict, "Standard error", verdict.get("stderr", {})),
        f"<section>\n<h2>Connections denied</h2>\n{_list([str(a) for a in verdict['sockets_denied']], ITEMS_MAX)}\n"
        "</section>"
        if verdict["sockets_denied"]
        else "",
        f"<section>\n<h2>Ignored differences</h2>\n{_list(ignored, ITEMS_MAX)}\n</section>" if ignored else "",
        _counts(verdict),
        _run_facts(verdict) if verdict.get("run_id") else "",
    ]
    title = f"{word}: {verdict.get('app') or 'replay'}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy()}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{_esc(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{chr(10).join(filter(None, parts))}
</main>
</body>
</html>
"""
