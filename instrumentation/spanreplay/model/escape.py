"""Make recorded content safe to show: no recording may control the reader's terminal."""

from __future__ import annotations

import re

__all__ = ["escape", "shorten", "window"]

# Characters that can move the cursor, colour the screen, hide text, or show it in another order than stored: C0
# and C1 controls, DEL, line separators, zero-width and bidirectional controls (CVE-2021-42574), tags, lone
# surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _name(match: re.Match[str]) -> str:
    character = match.group()
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(text: str, *, keep_lines: bool = False) -> str:
    """Write every control character out as an escape; `keep_lines` keeps newlines and tabs."""
    if keep_lines:
        return "\n".join(
            _UNSAFE.sub(lambda m: "\t" if m.group() == "\t" else _name(m), line) for line in text.split("\n")
        )
    return _UNSAFE.sub(_name, text)


def shorten(text: str, characters_max: int) -> str:
    """One escaped line of at most `characters_max` characters, cut at the end."""
    if len(text) > characters_max:
        text = text[:characters_max] + "…"
    line = escape(text)
    return line if len(line) <= characters_max else line[: characters_max - 1] + "…"


def window(text: str, at: int, characters_max: int) -> str:
    """One escaped line around character `at`, cut at either end if necessary."""
    if len(text) <= characters_max:
        return shorten(text, characters_max)
    start = max(0, min(at - characters_max // 2, len(text) - characters_max))
    end = start + characters_max
    head = "…" if start else ""
    tail = "…" if end < len(text) else ""
    return head + escape(text[start:end]) + tail
