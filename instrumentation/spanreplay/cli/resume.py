"""`spanreplay resume`: resume a run that is waiting for a human, or that was killed."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from spanreplay.cli.agent.child import as_shell_status
from spanreplay.cli.agent.launch import check_not_isolated, find_recorded_agent
from spanreplay.cli.replay import open_source, print_verdict, report_verdict, run_agent, work_folder
from spanreplay.cli.reports import check_files, write_files
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import say
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.report.shape import EXIT_STATUS, Verdict

_ENDED_BY_AGENT: Final = "resumed"


def _prompt_of(call: CallRecord) -> tuple[str, list[str]]:
    """The question for the human, and the valid answers; an empty list allows any answer."""
    request = runs.parse_json(call.request)
    arguments = request.get("arguments", {}) if isinstance(request, dict) else {}
    choices = arguments.get("choices", [])
    return str(arguments.get("prompt", "")), [str(c) for c in choices] if isinstance(choices, list) else []


def _check_answer(waiting: CallRecord | None, answer: Any, *, has_answer: bool) -> None:
    """Refuse an answer that is missing, not asked for, or not among the choices. Raises: ConfigError."""
    if waiting is None:
        if has_answer:
            raise ConfigError(
                "this run is not waiting for an answer", hint="leave out --input: the run continues where it ended"
            )
        return
    prompt, choices = _prompt_of(waiting)
    if not has_answer:
        raise ConfigError(f"the run is waiting for an answer to {prompt!r}", hint="give it: --input ANSWER")
    if choices and answer not in choices:
        raise ConfigError(f"{answer!r} is not a valid answer to {prompt!r}", hint=f"one of {', '.join(choices)}")


def _check_unfinished(recording: Recording) -> None:
    if recording.completeness().is_complete:
        raise ConfigError(
            f"run {recording.run_id} has ended: there is nothing to resume",
            hint=f"spanreplay replay {recording.run_id} -- CMD",
        )


def _status_of(verdict: Verdict, status: int) -> int:
    """The agent's own exit status if the run continued to its end, else the status of the verdict."""
    return as_shell_status(status) if verdict["verdict"] == _ENDED_BY_AGENT else EXIT_STATUS[verdict["verdict"]]


@click.command("resume")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--input", "text", metavar="ANSWER", help="The human's answer.")
@click.option("--input-json", "json_text", metavar="JSON", help="The human's answer, as a JSON value.")
@click.option("--redo", is_flag=True, help="Repeat a side effect whose outcome is unknown.")
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.pass_context
def resume_command(
    ctx: click.Context,
    /,
    *,
    source: str,
    command: tuple[str, ...],
    text: str | None,
    json_text: str | None,
    redo: bool,
    json_file: str | None,
) -> None:
    """Resume a run that is waiting for a human, or that was killed.

    The agent starts again. Up to the end of the recording, its calls are served from there: no call is made or paid
    for again. If today's code makes a different call, the run stops before any live call. After the end of the
    recording the agent continues live, and everything is recorded as a new run.

    \b
    spanreplay resume 0192f3a4b5c67 --input yes
    spanreplay resume latest --input yes -- python agent.py --verbose

    CMD is the agent's whole command; by default the recorded script and its arguments.

    Exit status: the agent's own; 3 if the agent differs before the recording ends, 7 if it waits again.
    """
    from spanreplay.replayer.resolve.continuation import Resume, find_waiting
    from spanreplay.replayer.resolve.plan import Plan

    files = {"json": json_file}
    check_files(files)
    if text is not None and json_text is not None:
        raise click.UsageError("--input and --input-json exclude each other")
    answer = text if json_text is None else _parse(json_text)
    has_answer = text is not None or json_text is not None
    with work_folder() as folder:
        found = open_source(source, folder)
        _check_unfinished(found.recording)
        _check_answer(find_waiting(found.recording), answer, has_answer=has_answer)
        agent = find_recorded_agent(command, found.recording)
        check_not_isolated(agent)
        plan = Plan().go_on(Resume(answer, has_answer, redo))
        verdict, status = run_agent(agent, found, {"SPANREPLAY_REPLAY_PLAN": plan.to_json()}, folder)
    print_verdict(verdict)
    write_files(verdict, files)
    if verdict["verdict"] in (_ENDED_BY_AGENT, "suspended"):
        say(f"  recorded  {verdict.get('replay_run_id', '')}")
    elif found.is_at_service and verdict["verdict"] != "error":
        report_verdict(verdict)
    ctx.exit(_status_of(verdict, status))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"--input-json is not JSON: {exc}") from exc
