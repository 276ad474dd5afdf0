"""The doctor's checks: turn facts about an agent and its environment into findings; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spanreplay.cli.agent.launch import Agent
from spanreplay.model import config, owners
from spanreplay.model import distributions as installed
from spanreplay.model.errors import ConfigError
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.sampling.rules import parse_rules
from spanreplay.units._table import COMMANDS, UNITS

__all__ = [
    "Finding",
    "check_environment",
    "check_folder",
    "check_python",
    "describe_server",
    "is_server",
    "read_report",
]

OK, WARN, FAIL, OFF = "ok", "warn", "fail", "off"
_FULL_SAMPLERS: Final = ("", "always_on", "parentbased_always_on")
_LIMITS: Final = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
_ROWS: Final = {row.distribution: row for row in UNITS}
_LEVEL_OF_STATE: Final = {"installed": OK, "waiting": OFF, "absent": OFF, "failed": FAIL}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: `level` is ok, warn, fail or off."""

    level: str
    subject: str
    message: str
    hint: str = ""


def check_environment(environ: Mapping[str, str]) -> list[Finding]:
    """Report environment variables that affect a recording."""
    found = []
    if config.read_flag("OTEL_SDK_DISABLED", environ):
        found.append(Finding(FAIL, "OTEL_SDK_DISABLED", "nothing is recorded while it is true", "unset it"))
    if config.read_setting("SPANREPLAY_MODE", environ) == "off":
        found.append(Finding(FAIL, "SPANREPLAY_MODE", "nothing is recorded while it is off", "unset it"))
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if sampler not in _FULL_SAMPLERS:
        message = f"{sampler} drops runs: a run that is not sampled is not recorded"
        found.append(Finding(WARN, "OTEL_TRACES_SAMPLER", message, "use parentbased_always_on"))
    found += _check_sampling(environ)
    for name in _LIMITS:
        if environ.get(name, "").strip():
            message = f"{environ[name].strip()} cuts the attributes of other instrumentors' spans"
            found.append(Finding(WARN, name, message, "unset it; calls that spanreplay records are not cut"))
    if environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() == "grpc":
        message = "recordings are shipped over OTLP/HTTP, usually port 4318"
        found.append(Finding(WARN, "OTEL_EXPORTER_OTLP_PROTOCOL", message, "name the HTTP address of the collector"))
    key_file = config.read_setting("SPANREPLAY_SIGNING_KEY", environ)
    if key_file:
        found.append(_check_signing(key_file))
    return found


def _check_signing(key_file: str) -> Finding:
    from spanreplay.recording.seal.signing import name_own_key

    try:
        return Finding(OK, "SPANREPLAY_SIGNING_KEY", f"runs are signed with key {name_own_key(key_file)}")
    except ConfigError as exc:
        return Finding(WARN, "SPANREPLAY_SIGNING_KEY", f"runs are recorded and not signed: {exc}", exc.hint)


def _check_sampling(environ: Mapping[str, str]) -> list[Finding]:
    name = "SPANREPLAY_SAMPLE"
    users = config.read_setting("SPANREPLAY_SAMPLE_KEEP_USERS", environ)
    try:
        rules = parse_rules(config.read_setting(name, environ), users)
    except ConfigError as exc:
        return [Finding(WARN, name, f"{exc}: every unit is kept", exc.hint)]
    if rules.is_always:
        return []
    message = f"recorded requests, jobs and messages: {rules.text}"
    message += f", and those of {len(rules.users)} users" if rules.users else ""
    return [Finding(OK, name, f"{message}; the run of the process counts the others")]


def check_folder(folder: Path) -> list[Finding]:
    """Report files in the working directory that would be imported instead of spanreplay."""
    for shadow in (folder / "spanreplay.py", folder / "spanreplay" / "__init__.py"):
        if shadow.is_file():
            hint = "rename it, or start the agent from another directory"
            return [Finding(FAIL, "import path", f"{shadow} is imported instead of spanreplay", hint)]
    return []


def check_python(agent: Agent, probe: Mapping[str, Any] | None) -> list[Finding]:
    """Report packages that the agent's Python lacks; `probe` is the output of probe.py, None if it could not run."""
    if not agent.python:
        message = f"{agent.argv[0]} is not a Python program; the Python that it starts must have spanreplay"
        return [Finding(WARN, "agent", message)]
    if agent.is_isolated:
        return [
            Finding(
                FAIL, "agent", f"Python runs with -{agent.python_flags}, so it does not load spanreplay", "leave it out"
            )
        ]
    if probe is None:
        return [Finding(FAIL, "agent", f"{agent.python} did not answer which packages it has")]
    packages, groups = probe["packages"], probe["groups"]
    install = install_command(python=agent.python)
    if not packages["spanreplay"]:
        return [Finding(FAIL, "agent", f"{agent.python} has no spanreplay", install)]
    found = [Finding(OK, "agent", f"{agent.python}, Python {probe['python']}, spanreplay {packages['spanreplay']}")]
    if "spanreplay" not in groups["opentelemetry_pre_instrument"]:
        found.append(Finding(FAIL, "entry point", "OpenTelemetry does not find spanreplay", f"reinstall: {install}"))
    if groups["opentelemetry_configurator"] and "otlp" not in groups["opentelemetry_traces_exporter"]:
        message = "opentelemetry-distro is installed without opentelemetry-exporter-otlp: OpenTelemetry fails"
        hint = "start with `spanreplay record -- CMD`, or install the exporter, or set OTEL_TRACES_EXPORTER=none"
        found.append(Finding(WARN, "opentelemetry-instrument", message + " before it loads spanreplay", hint))
    return found


def is_server(agent: Agent) -> bool:
    """Whether a command starts a server or worker, which runs until it is stopped."""
    program = _program(agent)
    return program in _ROWS or program in COMMANDS or owners.is_among(program, (owners.SERVERS,))


def _program(agent: Agent) -> str:
    """The name of the program that a command starts: its console script, or the module after `-m`."""
    kind, name = installed.find_start(list(agent.argv)) if agent.python == agent.argv[0] else ("script", agent.argv[0])
    if kind == "script" and name.endswith(".py"):
        return ""
    return installed.normalise(name.partition(".")[0] if kind == "module" else Path(name).name)


def describe_server(agent: Agent) -> list[Finding]:
    """Describe what would be recorded of a server, without starting it."""
    program = _program(agent)
    row = _ROWS.get(program)
    if row is not None:
        what, unit = ("server", "HTTP request") if row.kind == "`http`" else ("worker", "job")
        message = (
            f"{program} is a {what}: each {unit} is a run of its own, and everything else, like the "
            "application's start, is in the run of the process"
        )
    else:
        message = (
            f"{program} is a server: each of its processes is one run, from its start to its end or SIGTERM, with "
            "the calls of all requests that it serves; a forked worker has a run of its own, a process that "
            "multiprocessing starts is part of the run of the one that started it"
        )
    not_started = "not started, because a server does not end by itself; its libraries were not checked"
    return [Finding(OK, "recording", message), Finding(OFF, "agent", not_started)]


def _seam(row: Mapping[str, Any]) -> Finding:
    state = str(row.get("state", ""))
    library = " ".join(str(row.get(name) or "") for name in ("library", "version")).strip()
    message = f"{library}: {state}" if library else state
    if row.get("records") and state in ("installed", "waiting"):
        message += f", records {row['records']}"
    reason = str(row.get("reason") or "")
    level = _LEVEL_OF_STATE.get(state, WARN)
    return Finding(
        level, f"seam {row.get('seam', '?')}", message + (f" ({reason})" if reason and state != "absent" else "")
    )


def _leak(row: Mapping[str, Any]) -> Finding:
    """A finding for I/O outside all boundaries, which a replay can't repeat."""
    hint = "" if not row.get("is_hole") else "wrap the function that does it: @spanreplay.boundary(...)"
    return Finding(WARN, f"leak {row.get('kind', '?')}", str(row.get("said", "")), hint)


def _read(row: Mapping[str, Any]) -> Finding:
    state, place = str(row.get("state", "")), str(row.get("code") or "?")
    message = f"{row.get('what')} at {place}: {state}"
    return Finding(WARN if state == "not recorded" else OK, f"read {row.get('kind')}", message)


def read_report(report: Any) -> list[Finding]:
    """Turn the report that the agent's process wrote about itself into findings."""
    if not isinstance(report, dict):
        return [Finding(FAIL, "recording", "the agent's process reported nothing: spanreplay was not loaded in it")]
    found = []
    if report.get("not_recorded"):
        found.append(Finding(FAIL, "recording", f"not recorded: {report['not_recorded']}"))
    elif report.get("run_id"):
        found.append(Finding(OK, "recording", f"run {report['run_id']}"))
    if report.get("not_heard"):
        message = f"{report['not_heard']} is not from OpenTelemetry's SDK: the program's own spans are not recorded"
        found.append(Finding(WARN, "spans", message, "calls are still recorded"))
    rows = report.get("seams")
    found += [_seam(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    for name, tell in (("leaks", _leak), ("reads", _read)):
        listed = report.get(name)
        found += [tell(row) for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    failures = report.get("failures")
    if isinstance(failures, dict):
        found += [Finding(FAIL, str(what), f"failed: {count}") for what, count in sorted(failures.items())]
    return found
