"""The result of a replay, as a value: schema divergence/1."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import ALONE, CallRecord
from spanreplay.model.lane_names import is_earlier, name_number
from spanreplay.model.levels import FULL
from spanreplay.model.serving_stack import LIVE_NOTE
from spanreplay.replayer.addresses import hide_addresses, is_same_text
from spanreplay.replayer.compare.blame import Blame
from spanreplay.replayer.compare.changed_files import compare_files, list_by_size
from spanreplay.replayer.compare.drift import find_changed_files, find_drift
from spanreplay.replayer.compare.earlier_units import hint_at_earlier_units
from spanreplay.replayer.compare.findings import show_call
from spanreplay.replayer.compare.leading import find_raised, put_first
from spanreplay.replayer.compare.moving_parts import part_of_kind
from spanreplay.replayer.compare.not_compared import STDERR, STDOUT, find_not_compared
from spanreplay.replayer.compare.reordered import judge_order
from spanreplay.replayer.compare.unexercised import hint_at_bodies
from spanreplay.replayer.divergence import Divergence
from spanreplay.replayer.known_holes import excuse, find_doubt, has_ended_at_a_hole, stop_at_hole
from spanreplay.replayer.sandbox.dropped import list_dropped
from spanreplay.runtime.process.environment import describe_code
from spanreplay.runtime.process.kept_output import digest_of

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.run import Run

SCHEMA: Final = "divergence/1"
IDENTICAL, DIVERGED, INCOMPLETE, TAMPERED, ERROR = (
    "identical",
    "diverged",
    "incomplete",
    "tampered",
    "error",
)
OVER_BUDGET: Final = "over_budget"
SUSPENDED, RESUMED = "suspended", "resumed"
EXIT_CODES: Final = {
    IDENTICAL: 0,
    ERROR: 1,
    DIVERGED: 3,
    INCOMPLETE: 4,
    TAMPERED: 5,
    OVER_BUDGET: 6,
    SUSPENDED: 7,
    RESUMED: 0,
}
_DIFF_LINES_MAX: Final = 40
_LEFT_SHOWN_MAX: Final = 10


def build_verdict(
    session: Session,
    run: Run,
    *,
    stdout: dict[str, Any],
    stderr: dict[str, Any] | None = None,
    exit_status: int | None,
    ended_ns: int,
) -> dict[str, Any]:
    """Build the verdict from all findings; `stdout` and `stderr` are this process's `OutputCapture.describe`."""
    recording = session.recording
    calls, warm_up = _settle(session, run)
    missing, covered = session.unplayed()
    outputs = _compare_outputs(session, run, {STDOUT: stdout, STDERR: stderr or {}})
    exits = {"recorded": recording.root.manifest.get("exit"), "now": exit_status}
    divergences = _find_divergences(session, run, missing, exits, outputs)
    environment = _find_environment(session, run)
    is_other_end = not session.is_stopped and exits["recorded"] != exits["now"]
    raised = find_raised(run.redactor.text) if is_other_end else None
    drift, code = _find_drift(session, run), _code(session, run)
    has_changed = bool(code.get("code", {}).get("changed_files"))
    divergences = judge_order(session, divergences, code, is_block=exit_status is None)
    if divergences:
        made = sum(session.counts.get(name, 0) for name in ("served", "live", "rerun"))
        divergences = put_first(divergences, raised, made, is_offline=bool(session.guard and session.guard.is_offline))
        divergences = _blame(session, run, environment, drift).explain(divergences)
        divergences = hint_at_earlier_units(divergences, recording.root.env, warm_up.get("warm_up"))
        divergences = _doubt(session, divergences, calls, has_changed=bool(environment or drift or has_changed))
    counts = {
        **_count_calls(session, calls),
        "missing": 0 if session.has_reached_frontier else len(missing),
        "covered": covered,
        "downstream": sum(d.is_downstream for d in divergences),
        "ignored_diffs": session.findings.ignored_total,
    }
    return {
        "schema": SCHEMA,
        "verdict": SUSPENDED if run.suspended else _decide(session, divergences),
        "run_id": recording.run_id,
        "replay_run_id": run.run_id,
        "app": recording.root.app,
        "counts": counts,
        **({"live_note": LIVE_NOTE} if session.counts["live"] else {}),
        "divergences": [d.to_json() for d in divergences],
        "divergences_total": max(session.findings.divergences_total, len(divergences)),
        **({"ignored_diffs": [i.to_json() for i in session.findings.ignored]} if session.findings.ignored else {}),
        "reasons": _find_reasons(session, missing),
        **({"stopped": stopped} if (stopped := _find_stopped(session)) else {}),
        **({"suspended": dict(run.suspended)} if run.suspended else {}),
        "error": session.internal_error,
        **outputs,
        "not_compared": _find_uncompared(session, run, outputs),
        "exit": exits,
        "tokens": {"recorded": _tokens(calls), "live": session.live_tokens},
        "sockets_denied": list(session.sockets_denied),
        **({} if session.guard is None else {"sandbox": session.guard.describe()}),
        **({} if run.level is FULL else {"level": {"name": run.level.name, "leaves_open": run.level.describe_open()}}),
        **({"environment": environment} if environment else {}),
        **({"recorded_env": used} if (used := session.recorded_env.describe()) else {}),
        **({"drift": drift} if drift else {}),
        **({"unexercised": found} if (found := session.unexercised.describe(has_changed=has_changed)) else {}),
        **({"tokens_sent": sent} if (sent := session.sent_tokens.describe()) else {}),
        **warm_up,
        **code,
        "duration_ms": (ended_ns - run.start_ns) // 1_000_000,
        "recorded_duration_ms": max(0, recording.root.end_ns - recording.root.start_ns) // 1_000_000,
        **({} if session.meter is None else {"cost": session.meter.describe()}),
        "plan": session.plan.describe(),
    }


def _count_calls(session: Session, calls: tuple[CallRecord, ...]) -> dict[str, int]:
    """Count the calls of the run; those of the start of a unit's process, once it is over, by themselves."""
    of_start = {} if session.extent is None else session.extent.of_start
    counts = {name: count - of_start.get(name, 0) for name, count in session.counts.items()}
    unasked = sum(bool(call.meta.get(ALONE)) and call.seq not in session.index.used for call in calls)
    if unasked:
        counts["not_asked"] = unasked
    if not of_start:
        return {"recorded": len(calls), **counts}
    return {"recorded": sum(call.number > 0 for call in calls), **counts, "start": of_start["served"]}


def _doubt(
    session: Session, divergences: list[Divergence], calls: tuple[CallRecord, ...], *, has_changed: bool
) -> list[Divergence]:
    """Blame the recording for the differences if it may be to blame; name what the replay lacks if nothing changed."""
    session.findings.doubt = find_doubt(session, divergences, has_changed=has_changed)
    session.stopped = session.stopped or session.findings.doubt
    return divergences if has_changed else hint_at_bodies(divergences, calls, session.index.used)


def _settle(session: Session, run: Run) -> tuple[tuple[CallRecord, ...], dict[str, Any]]:
    """End the session; return the judged calls, and the verdict's member about the units replayed before them."""
    calls, described = session.recording.calls, {}
    warm_up = None if session.extent is None else session.extent.warm_up
    if warm_up is not None:
        warm_up.begin_judged(run)
        calls = tuple(call for call in session.recording.calls if not is_earlier(call.lane))
        described = {"warm_up": warm_up.describe()}
    stop_at_hole(session)
    session.settle_streams()
    return calls, described


def _find_environment(session: Session, run: Run) -> list[str]:
    """Return the names of variables and `.env` files that differ from the recording."""
    root, read = session.recording.root, run.environment_read
    differing = [] if read is None else read.find_differing(root.manifest.get("environment_read"), root.env)
    return sorted({*differing, *session.recorded_env.compare(run.redactor)})


def _find_drift(session: Session, run: Run) -> list[dict[str, Any]]:
    """Return what differs in the run's environment from the recorded one's."""
    here = session.relocation.value(run.redactor.value(dict(run.environment)))
    return [*session.relocation.describe(), *find_drift(session.recording.root.env, here)]


def _find_divergences(
    session: Session,
    run: Run,
    missing: list[CallRecord],
    exits: dict[str, Any],
    outputs: Mapping[str, dict[str, Any]],
) -> list[Divergence]:
    """Return the divergences: calls in the order of discovery, then connections, files and the process's output."""
    recording = session.recording
    divergences = _order_moves(session)
    if session.sockets_denied:  # whatever waits for the denied caller waits in vain
        divergences = [replace(d, is_downstream=d.is_downstream or d.kind == "order_stall") for d in divergences]
    blocked = [_blocked(address, any(not d.is_downstream for d in divergences)) for address in session.sockets_denied]
    if not session.has_reached_frontier:
        known = {d.recorded_span_id for d in divergences}
        left = [] if recording.is_imported else _missing_calls(session, missing, known)
        # A program that is denied a connection ends there
        divergences += [*blocked, *(replace(each, is_downstream=True) for each in left)] if blocked else left
    else:
        divergences += blocked
    if not session.is_stopped and not session.has_gone_on:
        then, now = _files(session, run)
        is_same_key = _is_same_key(session, run)
        downstream = bool(divergences)
        divergences += compare_files(then, now, recording.run_id, is_downstream=downstream, is_same_key=is_same_key)
        divergences += _output_divergences(outputs, exits, bool(divergences), run.level.describe_hint())
    if divergences:
        excuse(session)
    return divergences


def _files(session: Session, run: Run) -> tuple[Any, Any]:
    """Return what the recorded run and this replay left in files; (None, None) if this replay did not look."""
    if run.written is None:
        return None, None
    then = session.recording.root.manifest.get("files")
    now = session.relocation.files(then, run.written.describe().get("files"))
    return then, now if _is_same_key(session, run) else session.hidden.foreign.files(then, now)


def _is_same_key(session: Session, run: Run) -> bool:
    """Whether this replay redacts with the key of the recording, as far as the recording says."""
    return not session.hidden.foreign.is_foreign(run.redactor.fingerprint)


def _find_uncompared(session: Session, run: Run, outputs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the effects that this verdict does not compare."""
    by_size = () if _is_same_key(session, run) else list_by_size(*_files(session, run))
    unreadable = tuple(session.hidden.unreadable)
    return find_not_compared(
        session.recording, outputs, list_dropped(session), unreadable, by_size, is_hidden=session.hidden.foreign.is_used
    )


def _code(session: Session, run: Run) -> dict[str, Any]:
    """Return the recorded and current commits, and the agent's files that have changed."""
    recorded, manifest = session.recording.root.env.get("git_sha", ""), session.recording.root.manifest
    if not run.environment or not (recorded or manifest.get("code")):
        return {}
    loaded = session.findings.loaded
    early = None if loaded is None else describe_code(loaded)
    changed = find_changed_files(manifest.get("code"), describe_code(), early)
    return {"code": {"recorded": recorded, "now": run.environment.get("git_sha", ""), "changed_files": changed}}


def _blame(session: Session, run: Run, environment: list[str], drift: list[dict[str, Any]]) -> Blame:
    return Blame(
        calls=session.recording.calls,
        index=session.index,
        findings=session.findings,
        hidden=session.hidden,
        run=run,
        env=session.recording.root.env,
        differing=environment,
        drift=drift,
        tokens=session.recorded_env.list_tokens(),
        live=session.plan.describe()["live"],
    )


def _order_moves(session: Session) -> list[Divergence]:
    """Return the divergences; moves caused only by a recorded call that was left out are downstream of it."""
    found = [d for d in session.divergences if not is_earlier(d.lane)]
    if session.has_reached_frontier:
        return found
    for at, call, index in reversed(session.findings.moves):
        skipped = None if found[at].is_downstream else session.index.find_skipped(call, index)
        if skipped is not None and call.lane == found[at].lane:
            found[at] = replace(found[at], is_downstream=True, downstream_of=skipped.seq)
            found.insert(at, _missing(skipped, session.recording.run_id, root=None))
    # A worker that has taken another one's item has its own at another place
    workers = {call.span_id for _, call, _ in session.findings.moves if call.lane in session.findings.exchanged}
    return [d for d in found if d.kind != "moved" or d.recorded_span_id not in workers]


def _find_reasons(session: Session, missing: list[CallRecord]) -> list[str]:
    """Return why the verdict is not `identical` although nothing differs."""
    found = (session.tampering, _find_stopped(session), *session.completeness.reasons, _left(session, missing))
    return [reason for reason in found if reason]


def _left(session: Session, missing: list[CallRecord]) -> str:
    """Return the reason why it is unknown whether requests of a cassette are missing; '' if all of them were made.

    A cassette collects requests: of earlier versions of a test, and of each time that it was extended.
    """
    missing = [call for call in missing if call.parent < 0]  # the others are later hops of redirects
    if not session.recording.is_imported or not missing or session.is_stopped:
        return ""
    numbers = ", ".join(str(call.number) for call in missing[:_LEFT_SHOWN_MAX])
    more = f" and {len(missing) - _LEFT_SHOWN_MAX} more" if len(missing) > _LEFT_SHOWN_MAX else ""
    recorded = sum(call.parent < 0 for call in session.recording.calls)
    return (
        f"{len(missing)} of the cassette's {recorded} requests were not made (calls {numbers}{more}): they may be left "
        "over from earlier recordings"
    )


def _missing_calls(session: Session, missing: list[CallRecord], known: set[str]) -> list[Divergence]:
    """Return the calls that were not made; the first of each lane is a cause, unless an earlier divergence is."""
    found: list[Divergence] = []
    taint = session.findings.taint
    for call in missing:
        if call.span_id in known and call.span_id:
            continue
        root = taint.find(call.lane)
        if root is None and session.is_stopped:
            root = next((d.seq for d in session.divergences), 0)
        found.append(_missing(call, session.recording.run_id, root=root))
        taint.note(call.lane, call.seq)
    return found


def _decide(session: Session, divergences: list[Divergence]) -> str:
    if session.internal_error:
        return ERROR
    if session.tampering:
        return TAMPERED
    if session.meter is not None and session.meter.is_over:
        return OVER_BUDGET
    if session.has_gone_on and not divergences:
        return INCOMPLETE if session.stopped else RESUMED
    if divergences and not session.findings.doubt and not has_ended_at_a_hole(session):
        return DIVERGED
    return IDENTICAL if session.completeness.is_complete and not _find_stopped(session) else INCOMPLETE


def _find_stopped(session: Session) -> str:
    """Return why the replay ended early; '' if it did not, or at a gap of the recording, which lists its gaps."""
    is_at_hole = session.has_reached_frontier and session.completeness.is_complete
    return session.stopped or (session.hole if is_at_hole else "")


def _in_recorded_words(session: Session, run: Run, recorded: Any) -> Callable[[str], str]:
    """Return a function that rewrites an output with the recorded folders, and with the recorded tokens."""
    then = str(recorded.get("text", "")) if isinstance(recorded, dict) else ""
    if _is_same_key(session, run) or not then:
        return lambda text: session.relocation.text_towards(then, text)
    return lambda text: session.hidden.foreign.text(then, session.relocation.text_towards(then, text))


def _compare_outputs(session: Session, run: Run, now: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    manifest = session.recording.root.manifest
    return {
        name: compare_stdout(manifest.get(name), found, _in_recorded_words(session, run, manifest.get(name)))
        for name, found in now.items()
        if name == STDOUT or name in session.plan.compares
    }


def compare_stdout(recorded: Any, now: dict[str, Any], as_recorded: Callable[[str], str] = str) -> dict[str, Any]:
    """Return whether two captured outputs are equal; not compared if the recording has none.

    `as_recorded` translates a text to the recorded folders.
    """
    if not isinstance(recorded, dict) or not now:
        return {"compared": False, "equal": True, "recorded_bytes": 0, "bytes": now.get("bytes", 0), "diff": ""}
    text = str(now.get("text", ""))
    moved = as_recorded(text)
    then = str(recorded.get("text", ""))
    is_equal = recorded.get("sha256") in (now.get("sha256"), "" if moved == text else digest_of(moved))
    if not is_equal and digest_of(then) == recorded.get("sha256") and digest_of(text) == now.get("sha256"):
        is_equal = is_same_text(then, moved)  # both are complete
    diff = ""
    if not is_equal:
        lines = difflib.unified_diff(
            hide_addresses(then).splitlines(),
            hide_addresses(moved).splitlines(),
            "recorded",
            "now",
            lineterm="",
            n=1,
        )
        diff = "\n".join(line for _, line in zip(range(_DIFF_LINES_MAX), lines, strict=False))
    return {
        "compared": True,
        "equal": is_equal,
        "recorded_bytes": recorded.get("bytes", 0),
        "bytes": now.get("bytes", 0),
        "diff": diff,
    }


def _output_divergences(
    outputs: Mapping[str, dict[str, Any]], exits: dict[str, Any], is_downstream: bool, hint: str
) -> list[Divergence]:
    """Return the divergences of output and exit status; `hint` names a possible cause that the level leaves open."""
    found: list[Divergence] = []
    for name, output in outputs.items():
        if output["compared"] and not output["equal"]:
            found.append(
                Divergence(
                    kind="output_changed",
                    boundary=f"process:{name}",
                    message=f"the process's standard {'output' if name == STDOUT else 'error'} differs",
                    hint=hint,
                    is_downstream=is_downstream or bool(found),
                )
            )
    if None not in exits.values() and exits["recorded"] != exits["now"]:
        found.append(
            Divergence(
                kind="output_changed",
                boundary="process:exit",
                message=f"the exit status was {exits['recorded']}, now {exits['now']}",
                hint=hint,
                is_downstream=is_downstream or bool(found),
            )
        )
    return found


def _missing(call: CallRecord, run_id: str, *, root: int | None) -> Divergence:
    return Divergence(
        kind="missing_call",
        boundary=call.boundary,
        message=f"{name_number(call.number)} ({call.boundary}, lane {call.lane}) was recorded but not made now",
        lane=call.lane,
        index=call.index,
        seq=call.seq,
        call=call.number,
        code=call.code,
        hint=show_call(call, run_id),
        is_downstream=root is not None,
        downstream_of=root or 0,
        recorded_span_id=call.span_id,
        part=part_of_kind(call.kind),
    )


def _blocked(address: str, is_downstream: bool) -> Divergence:
    return Divergence(
        kind="effect_blocked",
        boundary="socket:connect",
        message=f"a connection to {address} was denied: no boundary covers it",
        hint="spanreplay doctor -- CMD lists which libraries are recorded",
        is_downstream=is_downstream,
    )


def _tokens(calls: tuple[CallRecord, ...]) -> int:
    values = (c.meta.get(k, 0) for c in calls for k in ("tokens_in", "tokens_out"))
    return sum(v for v in values if isinstance(v, int))
