"""Render a verdict as text for the person on call: what happened, the cause, what to do."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from spanreplay.model.escape import escape, shorten
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.report.shape import Diff, Divergence, Stdout, Verdict, first_cause
from spanreplay.report.words import (
    LINE_CHARACTERS_MAX,
    MEANING,
    describe_ignored,
    describe_level,
    describe_message,
    describe_not_compared,
    describe_place,
    describe_recorded_env,
    describe_unexercised,
    describe_warm_up,
    describe_warmth,
    duration,
    enumerate_words,
    facts,
    first_difference,
    is_cut_short,
    plural,
    show_value,
    unchecked,
)

__all__ = ["render", "render_diff", "render_verdict_line", "row", "show_usd"]

DIFFS_MAX: Final = 5
OTHERS_MAX: Final = 5
REASONS_MAX: Final = 10
STDOUT_LINES_MAX: Final = 20

_STYLE: Final = {
    "identical": "bold green",
    "diverged": "bold red",
    "incomplete": "bold yellow",
    "error": "bold red",
    "tampered": "bold red",
    "over_budget": "bold red",
    "suspended": "bold yellow",
    "resumed": "bold green",
}
_LABEL_WIDTH: Final = 10
_COUNTED: Final = {
    "not_asked": "of reporting tools not made",
    "start": "more of the start of its process",
    "reordered": "in another order",
}


def _identical_line(verdict: Verdict) -> str:
    counts = verdict["counts"]
    covered = counts.get("covered", 0)
    made = counts.get("recorded", 0) - counts.get("not_asked", 0) - covered
    line = f"✔ identical{describe_warmth(verdict)}: {plural(made, 'call')}, all as recorded"
    if covered:
        line += f", and {covered:,} inside them that {'was' if covered == 1 else 'were'} not made again"
    if "rerun" in verdict.get("plan", {}):
        line += f"; {plural(counts.get('rerun', 0), 'tool call')} ran again"
    if counts.get("live"):
        return f"{line}, except {plural(counts['live'], 'live call')}"
    checked = [
        name
        for name, was_checked in (
            ("standard output", verdict["stdout"].get("compared")),
            ("standard error", verdict.get("stderr", {}).get("compared")),
            ("exit status", verdict["exit"].get("recorded") is not None),
        )
        if was_checked
    ]
    return line + (f"; {enumerate_words(checked)} too" if checked else "")


def _resumed_line(verdict: Verdict) -> str:
    counts = verdict["counts"]
    parts = f"{plural(counts.get('served', 0), 'call')} from the recording, {counts.get('live', 0):,} made now"
    if verdict["verdict"] == "suspended":
        return f"! suspended: {parts}; it is waiting for an answer to {verdict.get('suspended', {}).get('prompt')!r}"
    return f"✔ resumed: {parts}"


def _incomplete_line(verdict: Verdict) -> str:
    served, stopped = verdict["counts"].get("served"), verdict.get("stopped")
    if served is None:
        return "! incomplete recording, not replayed"
    if stopped:
        return f"! {stopped}; {plural(served, 'call')} as recorded up to there"
    return f"! incomplete recording: {plural(served, 'call')} as recorded, up to where it ends"


def render_verdict_line(verdict: Verdict) -> Text:
    """The first line: the verdict in words."""
    word = verdict["verdict"]
    cause = first_cause(verdict)
    if word == "identical":
        line = _identical_line(verdict)
    elif word == "diverged" and cause is not None:
        line = f"✘ diverged{describe_place(cause)}: {describe_message(cause)}"
    elif word == "diverged":
        line = "✘ diverged"
    elif word == "incomplete":
        line = _incomplete_line(verdict)
    elif word == "error":
        why = shorten(str(verdict.get("error") or "it gave no reason"), LINE_CHARACTERS_MAX)
        line = f"✘ error: the replay failed: {why}"
    elif word in ("resumed", "suspended"):
        line = _resumed_line(verdict)
    elif word == "over_budget":
        cost = verdict.get("cost", {})
        spent, most = (show_usd(cost.get(name)) for name in ("live_usd", "max_usd"))
        line = f"✘ budget exceeded: {spent} of {most} spent on live calls"
    else:
        line = "✘ tampered: the recording was changed after it was written"
    return Text(line, style=_STYLE[word], overflow="fold")


def show_usd(amount: object) -> str:
    """An amount in US dollars, without trailing zeros."""
    return f"${amount:.6f}".rstrip("0").rstrip(".") if isinstance(amount, (int, float)) else "an unknown amount"


def row(label: str, text: str, style: str = "") -> Text:
    """One line of the report's body: a label and its text."""
    line = Text("  ")
    line.append(f"{label:<{_LABEL_WIDTH}}", style="dim")
    line.append(text, style=style)
    return line


def render_diff(diff: Diff, then: str = "recorded", now: str = "now") -> list[Text]:
    """One differing field: its path, and both values under these labels."""
    at = first_difference(diff)
    lines = [Text(f"  {escape(str(diff.get('path', '$')))}", style="bold")]
    if "recorded" in diff:
        lines.append(row(f"  {then}", " " + show_value(diff["recorded"], at), "red"))
    if "now" in diff:
        lines.append(row(f"  {now}", " " + show_value(diff["now"], at), "green"))
    return lines


def _cause_lines(cause: Divergence) -> list[Text]:
    meaning = MEANING.get(str(cause.get("kind")))
    lines = [Text(f"  {meaning}")] if meaning else []
    diffs = cause.get("diff") or []
    for diff in diffs[:DIFFS_MAX]:
        lines += render_diff(diff)
    if len(diffs) > DIFFS_MAX:
        lines.append(Text(f"  and {plural(len(diffs) - DIFFS_MAX, 'more difference')} in this call"))
    return lines + [row(label, text) for label, text in facts(cause)]


def _other_lines(verdict: Verdict, cause: Divergence) -> list[Text]:
    divergences = verdict["divergences"]
    downstream = verdict["counts"].get("downstream") or sum(bool(d.get("downstream")) for d in divergences)
    lines = []
    if downstream:
        verb = "call is" if downstream == 1 else "calls are"
        lines.append(Text(f"  {downstream:,} further {verb} downstream of it"))
    others = [d for d in divergences if d is not cause and not d.get("downstream")]
    for other in others[:OTHERS_MAX]:
        lines.append(row("also", f"{describe_place(other).strip()}: {describe_message(other)}".removeprefix(": ")))
    if len(others) > OTHERS_MAX:
        lines.append(row("", f"and {plural(len(others) - OTHERS_MAX, 'more divergence')}"))
    return lines


def _output_lines(verdict: Verdict, label: str, output: Stdout) -> list[Text]:
    if not output.get("compared") or output.get("equal") or is_cut_short(verdict):
        return []
    sizes = f"recorded {output.get('recorded_bytes', 0):,} bytes, now {output.get('bytes', 0):,}"
    lines = [row(label, f"differs: {sizes}")]
    diff = str(output.get("diff") or "").splitlines()
    for text in diff[:STDOUT_LINES_MAX]:
        style = "red" if text.startswith("-") else "green" if text.startswith("+") else ""
        lines.append(Text("    " + shorten(text, LINE_CHARACTERS_MAX), style=style))
    if len(diff) > STDOUT_LINES_MAX:
        lines.append(Text(f"    and {plural(len(diff) - STDOUT_LINES_MAX, 'more line')}"))
    return lines


def _ignored_lines(verdict: Verdict) -> list[Text]:
    found = describe_ignored(verdict)
    lines = [row("ignored" if i == 0 else "", text) for i, text in enumerate(found[:OTHERS_MAX])]
    if len(found) > OTHERS_MAX:
        lines.append(row("", f"and {plural(len(found) - OTHERS_MAX, 'more ignored difference')}"))
    return lines


def _count_line(verdict: Verdict) -> Text:
    counts = verdict["counts"]
    parts = [f"{counts.get('recorded', 0):,} recorded"]
    parts += [
        f"{value:,} {_COUNTED.get(name) or escape(name)}"
        for name, value in counts.items()
        if name != "recorded" and isinstance(value, int) and value
    ]
    return row("calls", ", ".join(parts))


def _fact_lines(verdict: Verdict) -> list[Text]:
    lines = [_count_line(verdict)]
    exit_pair, tokens = verdict["exit"], verdict["tokens"]
    if exit_pair.get("recorded") is not None and exit_pair.get("recorded") != exit_pair.get("now"):
        lines.append(row("exit", f"recorded {exit_pair['recorded']}, now {exit_pair.get('now')}"))
    if "recorded" in tokens:
        live = tokens.get("live", 0)
        saved = max(0, tokens["recorded"] - live)
        lines.append(row("tokens", f"{saved:,} not paid again" + (f", {live:,} paid for live calls" if live else "")))
    cost = verdict.get("cost")
    if cost:
        about = "about " if cost.get("estimated") else ""
        lines.append(row("cost", f"{about}{show_usd(cost.get('live_usd'))} of {show_usd(cost.get('max_usd'))}"))
    if verdict["counts"].get("live"):
        lines.append(row("live", LIVE_NOTE))
    for sent in verdict.get("tokens_sent", [])[:OTHERS_MAX]:
        place = f"call {sent.get('call')} ({sent.get('boundary')}) in {sent.get('field')}"
        lines.append(row("sent", shorten(f"a redaction token, live: {place}", LINE_CHARACTERS_MAX), "yellow"))
    for drift in verdict.get("drift", []):
        if drift.get("name") == "folder":
            lines.append(row("folder", escape(f"{drift.get('now')}, recorded in {drift.get('recorded')}")))
    denied = verdict["sockets_denied"]
    if denied:
        shown = ", ".join(shorten(str(address), 60) for address in denied[:OTHERS_MAX])
        more = f" and {len(denied) - OTHERS_MAX} more" if len(denied) > OTHERS_MAX else ""
        lines.append(row("denied", f"{plural(len(denied), 'connection')}: {shown}{more}", "yellow"))
    if "duration_ms" in verdict:
        then = verdict.get("recorded_duration_ms")
        recorded = f", recorded in {duration(then)}" if then else ""
        lines.append(row("time", duration(verdict["duration_ms"]) + recorded))
    return lines


def _reason_lines(verdict: Verdict) -> list[Text]:
    reasons = verdict["reasons"]
    lines = [
        row("why" if i == 0 else "", shorten(str(r), LINE_CHARACTERS_MAX)) for i, r in enumerate(reasons[:REASONS_MAX])
    ]
    if len(reasons) > REASONS_MAX:
        lines.append(row("", f"and {plural(len(reasons) - REASONS_MAX, 'more reason')}"))
    return lines


def render(verdict: Verdict) -> Text:
    """Render the whole report, verdict first; content is escaped and shortened.

    `verdict` comes from `spanreplay.report.json.parse`, so no container is missing.
    """
    lines = [render_verdict_line(verdict)]
    cause = first_cause(verdict)
    if cause is not None:
        lines += _cause_lines(cause)
        lines += _other_lines(verdict, cause)
    if verdict.get("hint"):
        lines.append(row("hint", shorten(str(verdict["hint"]), LINE_CHARACTERS_MAX)))
    lines += _reason_lines(verdict)
    lines += [Text(f"  {each}", style="yellow") for each in describe_warm_up(verdict)]
    lines += _output_lines(verdict, "stdout", verdict["stdout"])
    lines += _output_lines(verdict, "stderr", verdict.get("stderr", {}))
    lines += _ignored_lines(verdict)
    variables = describe_recorded_env(verdict)
    lines += [row("env", variables)] if variables else []
    unexercised = describe_unexercised(verdict)
    lines += [Text(f"  not exercised: {each}", style="yellow") for each in unexercised[:OTHERS_MAX]]
    if len(unexercised) > OTHERS_MAX:
        lines.append(Text(f"  and {len(unexercised) - OTHERS_MAX} more functions that changed were not exercised"))
    if verdict["verdict"] == "identical" and unchecked(verdict):
        lines.append(row("note", f"{unchecked(verdict)} could not be compared"))
    if verdict["verdict"] == "identical":
        lines.append(row("note", f"not compared: {describe_not_compared(verdict)}"))
    level = describe_level(verdict)
    lines += [row("note", level)] if level else []
    if verdict["counts"]:
        lines += _fact_lines(verdict)
    if verdict.get("run_id"):
        lines.append(row("run", escape(f"{verdict.get('run_id', '')} {verdict.get('app', '')}".strip())))
    return Text("\n").join(lines)
