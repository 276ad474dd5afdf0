"""Render the difference of two recorded runs, as text for a terminal and as one HTML page; pure."""

from __future__ import annotations

from typing import Any, Final, cast

from rich.text import Text

from spanreplay.model.escape import shorten
from spanreplay.model.lane_names import name_lane
from spanreplay.replayer.compare.two_runs.costs import CostDiff, PlaceCost, Spent
from spanreplay.replayer.compare.two_runs.difference import (
    ADDED,
    CHANGED,
    DROPPED,
    MOVED,
    OTHER_OUTPUT,
    SAME,
    CallDiff,
    RunDiff,
)
from spanreplay.report import text
from spanreplay.report.html_parts import escape_html, render_diff, render_facts, render_folded, render_list, render_page
from spanreplay.report.shape import Diff
from spanreplay.report.words import LINE_CHARACTERS_MAX, PART, enumerate_words, plural

__all__ = ["render_page_of_runs", "render_runs"]

DIFFS_MAX: Final = 5
CALLS_MAX: Final = 20
PLACES_MAX: Final = 5
ITEMS_MAX: Final = 500
REASONS_MAX: Final = 3
_WORDS: Final = {
    SAME: "the same",
    CHANGED: "with another request",
    OTHER_OUTPUT: "with another answer",
    ADDED: "only in B",
    DROPPED: "only in A",
    MOVED: "at another place",
}


def headline(found: RunDiff) -> str:
    """The first line, in words."""
    if found.first is not None:
        return f"A and B diverge at {describe_call(found.first)}: {found.first.describe()}"
    if not found.is_same:
        return f"the same calls and answers, but a different end: {_describe_ends(found)}"
    calls = plural(found.counts[SAME], "call")
    if found.reasons:
        return f"no difference in what was recorded ({calls}), but not everything was"
    return f"the same: {calls}, their answers and the output"


def describe_call(each: CallDiff) -> str:
    """A call's number in each run that has it, its boundary and its place in the code."""
    if each.a and each.b:
        number = f"call {each.b}" if each.a == each.b else f"call {each.a} of A, {each.b} of B"
    else:
        number = f"call {each.b} of B" if each.b else f"call {each.a} of A"
    place = f", {each.code}" if each.code else ""
    return f"{number} ({each.boundary}{place})"


def _describe_ends(found: RunDiff) -> str:
    ends = [(run.root.outcome, run.root.manifest.get("exit")) for run in (found.a, found.b)]
    if ends[0] != ends[1]:
        told = [f"{outcome}, exit status {status}" for outcome, status in ends]
        return f"A {told[0]}; B {told[1]}"
    return "the standard output differs"


def _facts(found: RunDiff) -> list[tuple[str, str]]:
    """The facts besides the differing values, as (label, line)."""
    rows: list[tuple[str, str]] = []
    first = found.first
    if first is not None:
        lane = name_lane(first.lane)
        rows += [("lane", lane)] if lane not in ("", "main", "unit") else []
        part = PART.get(first.part, "")
        rows += [("part", part + (f", in turn {first.turn}" if first.turn else ""))] if part else []
        for label, changes in (("messages", first.context), ("chunks", first.chunks)):
            told = ", ".join(f"{each.change} [{each.index}] {each.name}" for each in changes[:6])
            rows += [(label, told)] if told else []
    evidence = [each.evidence for each in found.causes]
    is_known = bool(found.causes) and found.causes[0].strength == "value"
    if evidence:
        rows.append(("cause", evidence[0] if is_known else f"perhaps {evidence[0]}"))
        rows += [("evidence", each) for each in evidence[1:]]
    elif first is not None and first.change != OTHER_OUTPUT:
        rows.append(("cause", "unknown: what differs is in no earlier answer, argument or version"))
    counted = [f"{count:,} {_WORDS[change]}" for change, count in found.counts.items() if count]
    rows.append(("calls", enumerate_words(counted) if counted else "none"))
    rows += [("output", "differs")] if not found.output["equal"] else []
    rows += [("incomplete", each) for each in found.reasons[:REASONS_MAX]]
    if len(found.reasons) > REASONS_MAX:
        rows.append(("incomplete", f"and {plural(len(found.reasons) - REASONS_MAX, 'more reason')}"))
    return [(label, shorten(told, LINE_CHARACTERS_MAX)) for label, told in rows]


def _hint(found: RunDiff) -> str:
    first = found.first
    if first is None:
        return ""
    run, number = (found.b, first.b) if first.b else (found.a, first.a)
    return f"spanreplay show {run.run_id} --call {number}"


def render_runs(found: RunDiff, *, with_cost: bool = False) -> list[Text]:
    """The lines for a terminal."""
    style = "green" if found.is_same and not found.reasons else "yellow" if found.is_same else "red"
    sign = "✔" if style == "green" else "!" if style == "yellow" else "✘"
    lines = [Text(f"{sign} {shorten(headline(found), LINE_CHARACTERS_MAX)}", style=style, overflow="fold")]
    lines += [text.row(name, _describe_run(run)) for name, run in (("A", found.a), ("B", found.b))]
    for diff in _diffs(found.first)[:DIFFS_MAX]:
        lines += text.render_diff(diff, "A", "B")
    lines += [text.row(label, told) for label, told in _facts(found)]
    others = [each for each in found.differences if each != found.first and not _is_first(each, found.first)]
    lines += [
        text.row("also", shorten(f"{describe_call(e)}: {e.describe()}", LINE_CHARACTERS_MAX))
        for e in others[:CALLS_MAX]
    ]
    if len(others) > CALLS_MAX:
        lines.append(text.row("also", f"{plural(len(others) - CALLS_MAX, 'more call')}: --json or --html shows them"))
    if with_cost:
        lines += [text.row("cost", told) for told in describe_costs(found.cost)]
    hint = _hint(found)
    return [*lines, text.row("next", hint)] if hint else lines


def _is_first(each: CallDiff, first: CallDiff | None) -> bool:
    return first is not None and (each.a, each.b) == (first.a, first.b)


def _describe_run(run: Any) -> str:
    root = run.root
    user = f", user {root.user_id}" if root.user_id else ""
    return shorten(
        f"{root.run_id} {root.app}{user}, {plural(len(run.calls), 'call')}, {root.outcome}", LINE_CHARACTERS_MAX
    )


def _diffs(each: CallDiff | None) -> list[Diff]:
    """The differing fields in the shape that reports show."""
    if each is None:
        return []
    return [cast("Diff", {"path": d.path, "recorded": d.recorded, "now": d.now}) for d in each.diff]


# ── cost ────────────────────────────────────────────────────────────────────────────────────────────
def describe_costs(cost: CostDiff) -> list[str]:
    """The cost of both runs, then the places in the code that cause the difference."""
    lines = [f"A {_spent(cost.a)}; B {_spent(cost.b)}"]
    for place in [each for each in cost.places if each.weight][:PLACES_MAX]:
        lines.append(_describe_place(place))
    if cost.a.usd is None or cost.b.usd is None:
        lines.append("in tokens; for amounts: --price MODEL=IN,OUT, in US dollars per million tokens")
    return [shorten(line, LINE_CHARACTERS_MAX) for line in lines]


def _describe_place(place: PlaceCost) -> str:
    where = f"{place.boundary} at {place.code}" if place.code else place.boundary
    if place.a.usd is not None and place.b.usd is not None:
        more = place.b.usd - place.a.usd
        amount = ("-" if more < 0 else "+") + text.show_usd(abs(more))
    else:
        tokens = place.b.tokens_in + place.b.tokens_out - place.a.tokens_in - place.a.tokens_out
        amount = f"{tokens:+,} tokens"
    since = f", first at call {place.first_more} of B" if place.first_more else ""
    return f"{amount} {where}: {plural(place.a.calls, 'call')} in A, {place.b.calls:,} in B{since}"


def _spent(spent: Spent) -> str:
    tokens = f"{spent.tokens_in:,}+{spent.tokens_out:,} tokens in {plural(spent.calls, 'call')}"
    return tokens if spent.usd is None else f"{text.show_usd(spent.usd)}, {tokens}"


# ── one page ────────────────────────────────────────────────────────────────────────────────────────
def render_page_of_runs(found: RunDiff) -> str:
    """Render one self-contained HTML page without scripts."""
    word = "identical" if found.is_same and not found.reasons else "incomplete" if found.is_same else "diverged"
    title = {"identical": "the same", "incomplete": "no difference found"}.get(word, "different")
    parts = [
        f'<header class="{word}"><h1>{escape_html(title)}</h1><p>{escape_html(headline(found))}</p></header>',
        "<section>\n<h2>Runs</h2>\n"
        + render_facts([(name, _describe_run(run)) for name, run in (("A", found.a), ("B", found.b))])
        + "\n</section>",
    ]
    if found.first is not None:
        shown = "".join(render_diff(diff, "A", "B") for diff in _diffs(found.first))
        place = escape_html(describe_call(found.first))
        parts.append(f"<section>\n<h2>{place}</h2>\n{shown}\n</section>")
    parts.append(f"<section>\n<h2>What is known</h2>\n{render_facts(list(_facts(found)))}\n</section>")
    if found.output["diff"]:
        parts.append(
            "<section>\n<h2>Standard output</h2>\n"
            f"<pre>{escape_html(found.output['diff'], keep_lines=True)}</pre>\n</section>"
        )
    for each in found.differences[:ITEMS_MAX]:
        if not _is_first(each, found.first):
            shown = "".join(render_diff(diff, "A", "B") for diff in _diffs(each)[:DIFFS_MAX])
            parts.append(render_folded(escape_html(f"{describe_call(each)}: {each.describe()}"), shown))
    parts.append(f"<section>\n<h2>Cost</h2>\n{render_list(describe_costs(found.cost), ITEMS_MAX)}\n</section>")
    return render_page(f"{found.a.root.app or 'run'}: two runs", parts)
