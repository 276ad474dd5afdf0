"""Parts of a self-contained HTML page without scripts; all text is escaped."""

from __future__ import annotations

import base64
import difflib
import hashlib
import html
import json
import re
from typing import Any, Final

from spanreplay.model.escape import escape
from spanreplay.report.html_style import STYLE
from spanreplay.report.shape import Diff

__all__ = ["escape_html", "render_diff", "render_facts", "render_folded", "render_list", "render_page"]

VALUE_CHARACTERS_MAX: Final = 2000
WORDS_EXACT_MAX: Final = 400
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def escape_html(content: object, *, keep_lines: bool = False) -> str:
    """Escape markup and control characters."""
    return html.escape(escape(str(content), keep_lines=keep_lines))


def _as_text(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return shown if len(shown) <= VALUE_CHARACTERS_MAX else shown[:VALUE_CHARACTERS_MAX] + "…"


def _marked(pieces: list[tuple[str, bool]]) -> str:
    """Pieces of a text as HTML, the differing ones marked."""
    shown = ((escape_html(piece, keep_lines=True), differs) for piece, differs in pieces if piece)
    return "".join(f"<mark>{piece}</mark>" if differs else piece for piece, differs in shown)


def _side_by_side(recorded: str, now: str) -> tuple[str, str]:
    """Both texts as HTML, with the words marked that only one of them has."""
    before, after = _WORDS.findall(recorded), _WORDS.findall(now)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(after) > WORDS_EXACT_MAX)
    left: list[tuple[str, bool]] = []
    right: list[tuple[str, bool]] = []
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        left.append(("".join(before[a:a_end]), tag != "equal"))
        right.append(("".join(after[b:b_end]), tag != "equal"))
    return _marked(left), _marked(right)


def render_diff(diff: Diff, then_caption: str = "recorded", now_caption: str = "now") -> str:
    """One differing field: both values side by side, with the differences marked."""
    recorded, now = diff.get("recorded", ""), diff.get("now", "")
    if isinstance(recorded, str) and isinstance(now, str):
        left, right = _side_by_side(_as_text(recorded), _as_text(now))
    else:
        left, right = _marked([(_as_text(recorded), True)]), _marked([(_as_text(now), True)])
    return (
        f"<h3><code>{escape_html(diff.get('path', '$'))}</code></h3>\n"
        '<div class="sides">\n'
        f'<figure class="then"><figcaption>{escape_html(then_caption)}</figcaption><pre>{left}</pre></figure>\n'
        f'<figure class="now"><figcaption>{escape_html(now_caption)}</figcaption><pre>{right}</pre></figure>\n'
        "</div>"
    )


def render_facts(rows: list[tuple[str, object]]) -> str:
    """Names with their values; empty values are left out."""
    shown = [
        f"<dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd>" for name, value in rows if value not in ("", None)
    ]
    return f"<dl>\n{chr(10).join(shown)}\n</dl>" if shown else ""


def render_folded(title: str, content: str) -> str:
    """Content that is folded below a title."""
    return f"<details><summary>{title}</summary>\n{content}\n</details>"


def render_list(items: list[str], items_max: int) -> str:
    """A list of texts; those beyond the limit are only counted."""
    more = [f"and {len(items) - items_max:,} more"] if len(items) > items_max else []
    return "<ul>\n" + "\n".join(f"<li>{escape_html(item)}</li>" for item in [*items[:items_max], *more]) + "\n</ul>"


def render_page(title: str, parts: list[str]) -> str:
    """The whole page; its content policy forbids scripts and requests."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy()}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{escape_html(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{chr(10).join(filter(None, parts))}
</main>
</body>
</html>
"""
