"""`spanreplay show`: a run as a tree of calls, or one call with its whole request and response."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from spanreplay.call import CallRecord, Effect, Outcome, Recording
from spanreplay.cli import runs
from spanreplay.cli.preview import answer_of, asked_of, chunk_text, facts_of
from spanreplay.cli.terminal import open_console, print_data, print_json
from spanreplay.cli.times import format_duration, format_local
from spanreplay.descent import PARENT
from spanreplay.errors import RunNotFound
from spanreplay.report.escape import escape, shorten

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

LINE_CHARACTERS_MAX: Final = 160
PIPE_LINE_CHARACTERS: Final = 110
REASONS_MAX: Final = 10
_INDENT: Final = 24
_STYLE: Final = {Outcome.ERROR.value: "red", Outcome.OPEN.value: "yellow", Outcome.CANCELLED.value: "yellow"}
_PHOENIX_PATH: Final = "/redirects/spans/"


def _links(source: str, recording: Recording) -> dict[str, str]:
    """Span id → page in Phoenix, where the catalog knows one."""
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
    who = [f"user {root.user_id}"] if root.user_id else []
    who += [f"session {root.session_id}"] if root.session_id else []
    state = root.outcome if completeness.is_complete else "incomplete"
    style = "green" if state == "ok" else "red" if state == "error" else "yellow"
    head = Text.assemble(
        ("run ", "bold"), (root.run_id, "bold"), "  ", (escape(root.app), "bold cyan"), "  ", (state, style)
    )
    lines = [head, Text(escape("  ".join([*started, *took, *who])), style="dim")]
    argv = root.env.get("argv")
    code = [" ".join(map(str, argv))] if isinstance(argv, list) and argv else []
    parent = root.env.get(PARENT)
    if isinstance(parent, dict):
        code.append(f"started by run {parent.get('run_id')}, call {parent.get('seq')}")
    code += [f"git {str(root.env['git_sha'])[:12]}"] if root.env.get("git_sha") else []
    code += [f"Python {root.env['python']}"] if root.env.get("python") else []
    if code:
        lines.append(Text(shorten("  ".join(code), LINE_CHARACTERS_MAX), style="dim"))
    if root.env.get("resumes"):
        lines.append(Text(f"goes on with {escape(str(root.env['resumes']))}", style="dim"))
    if root.replay_of:
        lines.append(Text(f"replay of {escape(root.replay_of)}", style="dim"))
    lines += [Text(f"incomplete: {escape(r)}", style="yellow") for r in completeness.reasons[:REASONS_MAX]]
    lines += [Text(f"unrecorded: {escape(r)}", style="dim") for r in _list_leaks(recording)]
    if link:
        lines.append(Text(f"Phoenix {link}", style="dim"))
    return lines


def _list_leaks(recording: Recording) -> list[str]:
    """I/O outside of every boundary that the reasons of incompleteness do not name already."""
    rows = recording.root.manifest.get("leaks")
    named = [r for r in rows if isinstance(r, dict) and not r.get("is_hole")] if isinstance(rows, list) else []
    return [str(row.get("said", "")) for row in named[:REASONS_MAX]]


def _call_label(call: CallRecord, *, lane: str, characters: int) -> Text:
    from rich.text import Text

    label = Text()
    label.append(f"{call.seq} ", style="bold")
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
        facts.append(f"lane {call.lane}")
    if call.code:
        facts.append(call.code)
    label.append(shorten("  " + "  ".join(facts), LINE_CHARACTERS_MAX), style="dim")
    for mark, text in (("→ ", asked_of(call)), ("← ", answer_of(call))):
        if text:
            label.append(f"\n{mark}", style="dim")
            label.append(shorten(text, characters))
    return label


def build_tree(recording: Recording, *, link: str, characters: int) -> Tree:
    """The run as a tree: lanes, in them the calls in start order, below a call those made inside of it."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text("\n").join(_head_lines(recording, link)), guide_style="dim")
    by_seq = {c.seq: c for c in recording.calls}
    nodes: dict[int, Tree] = {}
    lanes: dict[str, Tree] = {}
    has_lanes = len({c.lane for c in recording.calls if c.parent not in by_seq}) > 1
    for call in recording.calls:
        if call.parent in nodes:
            above, lane = nodes[call.parent], by_seq[call.parent].lane
        elif has_lanes:
            if call.lane not in lanes:
                lanes[call.lane] = tree.add(Text(f"lane {escape(call.lane)}", style="cyan"))
            above, lane = lanes[call.lane], call.lane
        else:
            above, lane = tree, call.lane
        nodes[call.seq] = above.add(_call_label(call, lane=lane, characters=characters))
    return tree


def _pretty(text: str) -> str:
    value = runs.parse_json(text)
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return escape(shown, keep_lines=True)


def _echo_call(call: CallRecord, link: str) -> None:
    """One call, whole: nothing is shortened."""
    click.secho(f"call {call.seq}  {escape(call.boundary)}  {call.outcome}", bold=True)
    rows = [
        ("lane", f"{call.lane}, number {call.index}"),
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
    for label, text in rows:
        if text:
            click.echo(f"  {label:<9} {escape(text)}")
    click.secho("\nrequest", bold=True)
    click.echo(_pretty(call.request) if call.request else "(none)")
    click.secho("\nresponse", bold=True)
    click.echo(_pretty(call.response) if call.response else "(none: the call did not end)")
    text = chunk_text(runs.parse_json(call.response))
    if text:
        click.secho("\nresponse text, chunks joined", bold=True)
        body = runs.parse_json(text)
        click.echo(_pretty(text) if not isinstance(body, str) else escape(text, keep_lines=True))


def _find_call(recording: Recording, seq: int) -> CallRecord:
    for call in recording.calls:
        if call.seq == seq:
            return call
    numbers = f"{recording.calls[0].seq} to {recording.calls[-1].seq}" if recording.calls else "none"
    raise RunNotFound(
        f"run {recording.run_id} has no call {seq}; its calls are {numbers}",
        hint=f"spanreplay show {recording.run_id}",
    )


@click.command("show")
@click.argument("run", shell_complete=runs.complete_run)
@click.option("--call", "seq", type=click.IntRange(0), help="One call, with its whole request and response.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is recorded, as JSON.")
def show_command(*, run: str, seq: int | None, as_json: bool) -> None:
    """Show what happened in a run.

    RUN is a run id or its beginning, `latest`, or a .replay file.

    \b
    spanreplay show 0192f3a4b5c67
    spanreplay show latest --call 7
    """
    recording = runs.load(run)
    links = _links(run, recording)
    if seq is not None:
        call = _find_call(recording, seq)
        link = links.get(call.span_id, "")
        if as_json:
            print_json(runs.call_to_json(call, link))
        else:
            _echo_call(call, link)
        return
    if as_json:
        print_json(runs.recording_to_json(recording, links))
        return
    console = open_console()
    characters = max(40, console.width - _INDENT) if console.is_terminal else PIPE_LINE_CHARACTERS
    print_data(build_tree(recording, link=links.get(recording.root.span_id, ""), characters=characters))
