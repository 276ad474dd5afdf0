"""`spanreplay show`: show a run as a tree of calls, or one call with its whole request and response."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from spanreplay.cli.runs import runs
from spanreplay.cli.runs.page import render_run
from spanreplay.cli.runs.preview import answer_of, asked_of, chunk_text, conversation_of, facts_of
from spanreplay.cli.runs.show_filter import Chosen, Wanted, choose
from spanreplay.cli.runs.times import format_duration, format_local
from spanreplay.cli.terminal import open_console, print_data, print_json, print_pages, say
from spanreplay.model.attributes import FORKED_AT, RESUMES, UNIT, UNIT_TRACE
from spanreplay.model.call import CallRecord, Effect, Kind, Outcome, Recording
from spanreplay.model.escape import escape, shorten
from spanreplay.model.lane_names import name_lane
from spanreplay.recording.catalog import PARENT
from spanreplay.recording.derived import describe_origin
from spanreplay.recording.sampling.tally import describe_sampling
from spanreplay.runtime.order.signal_names import find_signals
from spanreplay.runtime.process import environment
from spanreplay.runtime.who import OTHERS
from spanreplay.units.stated import find_unit

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

LINE_CHARACTERS_MAX: Final = 160
PIPE_LINE_CHARACTERS: Final = 110
REASONS_MAX: Final = 10
SIGNALS_MAX: Final = 10
KINDS: Final = [kind.value for kind in Kind]
_INDENT: Final = 24
_STYLE: Final = {Outcome.ERROR.value: "red", Outcome.OPEN.value: "yellow", Outcome.CANCELLED.value: "yellow"}
_PHOENIX_PATH: Final = "/redirects/spans/"


def _links(source: str, recording: Recording) -> dict[str, str]:
    """Span id → page in Phoenix, if the catalog knows one."""
    if runs.is_file(source):
        return {}
    with runs.open_catalog() as catalog:
        phoenix_url = getattr(catalog, "phoenix_url", None)
        page = phoenix_url(recording.run_id) if phoenix_url is not None else ""
    base, found, _ = str(page).partition(_PHOENIX_PATH)
    if not found:
        return {}
    span_ids = [recording.root.span_id, *(c.span_id for c in recording.calls)]
    return {span_id: f"{base}{_PHOENIX_PATH}{span_id}" for span_id in span_ids if span_id}


def _head_lines(recording: Recording, link: str) -> list[Text]:
    from rich.text import Text

    root, completeness = recording.root, recording.completeness()
    started = [f"started {format_local(root.start_ns)}"] if root.start_ns else []
    took = [format_duration(root.end_ns - root.start_ns)] if root.end_ns > root.start_ns else []
    others = root.manifest.get(OTHERS)
    more = {what: f" and {count} more" for what, count in others.items()} if isinstance(others, dict) else {}
    who = [f"user {root.user_id}{more.get('user', '')}"] if root.user_id else []
    who += [f"session {root.session_id}{more.get('session', '')}"] if root.session_id else []
    ended_by = (root.manifest or {}).get("ended_by")
    state = f"ended by {escape(str(ended_by))}" if ended_by else root.outcome
    state = state if completeness.is_complete else "incomplete"
    style = "green" if state == "ok" else "red" if state == "error" else "yellow"
    head = Text.assemble(
        ("run ", "bold"), (root.run_id, "bold"), "  ", (escape(root.app), "bold cyan"), "  ", (state, style)
    )
    lines = [head, Text(escape("  ".join([*started, *took, *who])), style="dim")]
    command = environment.show_command(root.env)
    code = [command] if command else []
    parent = root.env.get(PARENT)
    if isinstance(parent, dict):
        code.append(f"started by run {parent.get('run_id')}, call {parent.get('seq')}")
    code += [f"git {str(root.env['git_sha'])[:12]}"] if root.env.get("git_sha") else []
    code += [f"Python {root.env['python']}"] if root.env.get("python") else []
    if code:
        lines.append(Text(shorten("  ".join(code), LINE_CHARACTERS_MAX), style="dim"))
    unit = find_unit(root.env)
    if unit is not None:
        of_trace = root.env[UNIT].get(UNIT_TRACE)
        trace = f", part of trace {escape(str(of_trace))}" if of_trace else ""
        lines.append(Text(f"a unit of the process of run {unit.process}{trace}", style="dim"))
    sampling = describe_sampling(root.manifest)
    if sampling:
        lines.append(Text(escape(sampling), style="dim"))
    if root.env.get(RESUMES):
        at = root.env.get(FORKED_AT)
        how = f"forked before call {escape(str(at))} of" if at else "resumes"
        lines.append(Text(f"{how} {escape(str(root.env[RESUMES]))}", style="dim"))
    if describe_origin(recording):
        lines.append(Text(escape(describe_origin(recording)), style="yellow"))
    if signals := _list_signals(recording):
        lines.append(Text(f"signals: {', '.join(signals)}", style="yellow"))
    if root.replay_of:
        lines.append(Text(f"replay of {escape(root.replay_of)}", style="dim"))
    lines += [Text(f"incomplete: {escape(r)}", style="yellow") for r in completeness.reasons[:REASONS_MAX]]
    if root.apart:
        lines.append(Text(f"{root.apart} later records with different content are stored separately", style="yellow"))
    lines += [Text(f"unrecorded: {escape(r)}", style="dim") for r in _list_leaks(recording)]
    if link:
        lines.append(Text(f"Phoenix {link}", style="dim"))
    return lines


def _list_signals(recording: Recording) -> list[str]:
    """The signals that reached a handler of the program, each with the call before it."""
    timers = recording.root.manifest.get("timers")
    rows = timers.items() if isinstance(timers, dict) else ()
    clocks = {
        str(name): fired[0] for name, fired in rows if isinstance(fired, list) and fired and type(fired[0]) is int
    }
    shown = []
    for arrival in find_signals(clocks, "main")[:SIGNALS_MAX]:
        behind = max((call.number for call in recording.calls if call.seq < arrival.clock), default=0)
        shown.append(f"{_name_signal(arrival.number)} {f'after call {behind}' if behind else 'before the first call'}")
    return shown


def _name_signal(number: int) -> str:
    """The name of a signal, as `kill -l` lists it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _list_leaks(recording: Recording) -> list[str]:
    """I/O outside all boundaries, except what the reasons for incompleteness already name."""
    rows = recording.root.manifest.get("leaks")
    named = [r for r in rows if isinstance(r, dict) and not r.get("is_hole")] if isinstance(rows, list) else []
    return [str(row.get("said", "")) for row in named[:REASONS_MAX]]


def _call_label(call: CallRecord, *, lane: str, characters: int) -> Text:
    from rich.text import Text

    label = Text()
    label.append(f"{call.number} ", style="bold")
    label.append(f"{escape(call.kind)} ", style="magenta")
    label.append(escape(call.name), style="bold")
    if call.effect in (Effect.WRITE.value, Effect.IRREVERSIBLE.value):
        label.append(f"  {call.effect}", style="yellow")
    if call.outcome != Outcome.OK.value:
        label.append(f"  {escape(call.outcome)}", style=_STYLE.get(call.outcome, ""))
    facts = facts_of(call)
    if call.end_ns > call.start_ns:
        facts.append(format_duration(call.end_ns - call.start_ns))
    if call.lane != lane:
        facts.append(name_lane(call.lane))
    if call.code:
        facts.append(call.code)
    label.append(shorten("  " + "  ".join(facts), LINE_CHARACTERS_MAX), style="dim")
    for mark, text in (("→ ", asked_of(call)), ("← ", answer_of(call))):
        if text:
            label.append(f"\n{mark}", style="dim")
            label.append(shorten(text, characters))
    return label


def build_tree(recording: Recording, chosen: list[Chosen], *, link: str, characters: int) -> Tree:
    """The run as a tree: its lanes, their calls in start order, and below each call the calls made inside it."""
    from rich.text import Text
    from rich.tree import Tree

    head = _head_lines(recording, link)
    if len(chosen) < len(recording.calls):
        head.append(Text(f"{len(chosen)} of {len(recording.calls)} calls match", style="dim"))
    tree = Tree(Text("\n").join(head), guide_style="dim")
    calls = [each.call for each in chosen]
    by_seq = {c.seq: c for c in calls}
    nodes: dict[int, Tree] = {}
    lanes: dict[str, Tree] = {}
    has_lanes = len({c.lane for c in calls if c.parent not in by_seq}) > 1
    for each in chosen:
        call = each.call
        if call.parent in nodes:
            above, lane = nodes[call.parent], by_seq[call.parent].lane
        elif has_lanes:
            if call.lane not in lanes:
                lanes[call.lane] = tree.add(Text(escape(name_lane(call.lane)), style="cyan"))
            above, lane = lanes[call.lane], call.lane
        else:
            above, lane = tree, call.lane
        label = _call_label(call, lane=lane, characters=characters)
        if each.excerpt:
            label.append(f"\nfound in {each.excerpt}", style="yellow")
        nodes[call.seq] = above.add(label)
    return tree


def _pretty(text: str) -> str:
    value = runs.parse_json(text)
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return escape(shown, keep_lines=True)


def _describe_call(call: CallRecord, link: str) -> str:
    """One call, unshortened and escaped, with its headings in bold."""
    lines = [_heading(f"call {call.number}  {call.boundary}  {call.outcome}")]
    rows = [
        ("lane", f"{name_lane(call.lane)} ({call.lane}, number {call.index})"),
        ("effect", call.effect),
        ("code", call.code),
        ("took", format_duration(call.end_ns - call.start_ns) if call.end_ns > call.start_ns else ""),
        ("facts", "  ".join(facts_of(call))),
        ("call id", call.call_id),
        ("redacted", ", ".join(f"{rule} {count}" for rule, count in sorted(call.redactions.items()))),
        ("key", f"{call.key[:16]} ({call.keyspec})" if call.key else ""),
        ("span", call.span_id),
        ("Phoenix", link),
    ]
    lines += [f"  {label:<9} {escape(text)}" for label, text in rows if text]
    lines += ["", _heading("request"), _pretty(call.request) if call.request else "(none)"]
    lines += ["", _heading("response"), _pretty(call.response) if call.response else "(none: the call did not end)"]
    text = chunk_text(runs.parse_json(call.response))
    if text:
        body = runs.parse_json(text)
        shown = _pretty(text) if not isinstance(body, str) else escape(text, keep_lines=True)
        lines += ["", _heading("response text, chunks joined"), shown]
    return "\n".join(lines)


def _describe_all(recording: Recording, calls: list[CallRecord]) -> str:
    """All calls, unshortened, without ids and times, so that recordings of the same behaviour give equal text.

    A model's answer is shown as joined text, however it was split into chunks.
    """
    argv = recording.root.env.get("argv")
    words = " ".join(map(str, argv)) if isinstance(argv, list) else ""
    lines = [_heading(f"run of {recording.root.app}  {words}".rstrip())]
    for call in calls:
        said = answer_of(call) if conversation_of(call) else ""
        answer = said or chunk_text(runs.parse_json(call.response)) or call.response
        lines += [
            "",
            _heading(f"call {call.number}  {call.boundary}  {call.outcome}"),
            escape(f"  {name_lane(call.lane)}  {call.code}".rstrip()),
            _pretty(call.request) if call.request else "(no request)",
            _heading("→"),
            _pretty(answer) if answer else "(none: the call did not end)",
        ]
    return "\n".join(lines)


def _heading(text: str) -> str:
    return click.style(escape(text), bold=True)


def _read_pattern(ctx: click.Context, param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    """The value of --grep. Raises: BadParameter."""
    try:
        return None if text is None else re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise click.BadParameter(f"{text!r} is not a regular expression: {exc}") from exc


@click.command("show")
@click.argument("run", shell_complete=runs.complete_run)
@click.option("--call", "number", type=click.IntRange(1), help="One call, with its full request and response.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Calls of this kind; may be repeated.")
@click.option(
    "--grep",
    "pattern",
    metavar="REGEX",
    callback=_read_pattern,
    help="Calls whose name, request or response matches; (?i) at its beginning ignores case.",
)
@click.option("--errors", "only_errors", is_flag=True, help="Calls that raised, got an error, or never ended.")
@click.option(
    "--full", "is_full", is_flag=True, help="Every call with its full request and answer, without ids and times."
)
@click.option("--no-pager", is_flag=True, help="Print everything without a pager.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write one HTML page."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything that is recorded, as JSON.")
def show_command(
    *,
    run: str,
    number: int | None,
    kinds: tuple[str, ...],
    pattern: re.Pattern[str] | None,
    only_errors: bool,
    is_full: bool,
    no_pager: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Show what happened in a run.

    RUN is a run id or its beginning, `latest`, or a .replay file. Output that does not fit the terminal goes through
    the pager that PAGER names. Recordings are redacted: --grep finds what is stored, not what was hidden. The page of
    --html needs no server: send it, or a link to one call in it (`run.html#call-7`). With --full as git's textconv,
    `git diff` shows what changed in a recording (docs/pytest.md).

    \b
    spanreplay show 0192f3a4b5c67
    spanreplay show latest --call 7
    spanreplay show latest --kind tool --grep 'refund|chargeback'
    spanreplay show latest --html run.html
    """
    wanted = Wanted(frozenset(kinds), pattern, only_errors)
    if number is not None and wanted:
        raise click.UsageError("--call shows one call: leave out --kind, --grep and --errors")
    if page is not None and (as_json or is_full or number is not None):
        raise click.UsageError("--html writes a page of the whole run: leave out --json, --full and --call")
    recording = runs.load(run)
    links = _links(run, recording)
    if number is not None:
        call = runs.find_call(recording, number)
        link = links.get(call.span_id, "")
        if as_json:
            print_json(runs.call_to_json(call, link))
        else:
            (click.echo if no_pager else print_pages)(_describe_call(call, link))
        return
    chosen = choose(recording.calls, wanted)
    if page is not None:
        page.write_text(render_run(recording, [each.call for each in chosen], links), encoding="utf-8")
        say(f"wrote {page}")
        return
    if as_json:
        numbers = {each.call.number for each in chosen}
        shown = runs.recording_to_json(recording, links)
        print_json({**shown, "calls": [call for call in shown["calls"] if call["call"] in numbers]})
        return
    if is_full:
        (click.echo if no_pager else print_pages)(_describe_all(recording, [each.call for each in chosen]))
        return
    console = open_console()
    characters = max(40, console.width - _INDENT) if console.is_terminal else PIPE_LINE_CHARACTERS
    link = links.get(recording.root.span_id, "")
    print_data(build_tree(recording, chosen, link=link, characters=characters), is_paged=not no_pager)
