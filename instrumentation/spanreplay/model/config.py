"""Every setting of spanreplay, in one table, and all limits.

Order of precedence: code argument > our own variable > OTel variable > default. OTel parsing: an empty
value is unset, only "true" (any case) is true, a bad value warns and is ignored.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

# ── Limits ──────────────────────────────────────────────────────────────────────────────────────────
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A request or response larger than this is cut, counted, and makes its run incomplete."""
SPOOL_BYTES_MAX: Final = 4 * 1024**3
"""The spool directory never grows beyond this; dropped records are counted in the manifest."""
STDOUT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Standard output kept for comparison; beyond it only the hash continues."""
STDERR_BYTES_MAX: Final = 256 * 1024
"""Standard error kept for comparison, likewise."""
HELD_UNIT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of one unit until sampling decides whether to keep it; a unit that needs more is kept."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same limit for all units of a process together."""
SHIP_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
SHIP_INTERVAL_MS: Final = 500
SHIP_EXIT_TIMEOUT_MS: Final = 5_000
END_BY_SIGNAL_MAX_MS: Final = 7_000
CANCEL_WAIT_MS: Final = 10_000
"""A replay waits this much longer than the recorded call took for the program to cancel it again."""
CONSTANTS_MAX: Final = 4_096
"""Boundaries (by lane and place) for which one run remembers the constant part of a record."""
MEMO_ITEMS_MAX: Final = 4_000
"""Texts and parts of requests that one run remembers as already redacted or digested. Long conversations have fewer
messages, and a service that never sees a text again doesn't remember more."""
LANES_MAX: Final = 20_000
"""Lanes whose calls a manifest counts separately; calls of further lanes are counted together."""
OTHER_LANES: Final = "other lanes"
CALLS_MAX: Final = 1_000_000
"""Calls in one run; further calls are counted as dropped."""
ROWS_MAX: Final = 10_000
"""Rows of one query that are recorded; a query that returns this many is a hole."""
COLLECTIONS_MAX: Final = 10_000
"""Collections of a vector store whose names are kept; further ones are named by their ids."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger file that the agent reads is recorded by its hash only, and cannot be replayed: a hole."""
LISTED_NAMES_MAX: Final = 20_000
"""Names of one folder that are recorded; a folder with more is a hole."""
READS_PENDING_MAX: Final = 100_000
"""Reads of clock and random sources between two calls of a lane; further ones are not recorded: a hole."""
LOOSE_READS_PENDING_MAX: Final = 20_000
"""Log records between two calls of a lane whose time is recorded."""
SLEEPS_MAX: Final = 10_000
"""Thread sleeps whose end is recorded; later ones are cut short in a replay and end in any order."""
TIMERS_MAX: Final = 20_000
"""asyncio timers whose firing order is recorded."""
PROCESSES_MAX: Final = 1_000
"""Processes of one run for whose work a replay waits."""
WORKER_JOBS_MAX: Final = 20_000
"""Pool jobs whose worker is recorded; jobs of a pool's first worker don't count."""
ABSENT_MAX: Final = 1_000
"""Paths named in the manifest because nothing existed there before the run."""
WARM_UP_UNITS_MAX: Final = 1_000
"""Earlier units that a replay runs before the one that is judged; if there are more, the latest."""
WARM_UP_BYTES_MAX: Final = 256 * 1024 * 1024
LOCK_ORDER_MAX: Final = 20_000
"""Acquisitions by another thread than before (of locks, standard output) whose order is recorded."""
PRINTED_CHARACTERS_MAX: Final = 1024 * 1024
"""Printed output of one call, printed again in a replay; a call that prints more is a hole."""
STEPS_MAX: Final = 60_000
"""Counts of callbacks run by an event loop between completions; further counts are not recorded."""
LANE_ENDS_MAX: Final = 20_000
"""Threads and pool calls whose order of ending is recorded."""
OTLP_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
GRPC_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
CALL_BATCH_ITEMS: Final = 256
CALL_BATCH_BYTES_MAX: Final = 2 * 1024 * 1024

OTLP_HTTP_PORT: Final = 4318
OTLP_GRPC_PORT: Final = 4317
SERVICE_PORT: Final = 4319
PHOENIX_PORT: Final = 6006
PHOENIX_GRPC_PORT: Final = 14317


@dataclass(frozen=True)
class Setting:
    """One row of the settings table."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "SPANREPLAY_MODE",
        "record",
        "what a process under opentelemetry-instrument does",
        ("record", "replay", "off"),
    ),
    Setting(
        "SPANREPLAY_LEVEL",
        "",
        "how much is recorded: calls, what crosses a boundary; full, also how threads and event loops take turns, and "
        "looks at files; default: calls for servers and workers, full for everything else; a replay takes the level of "
        "its recording",
        ("calls", "full"),
    ),
    Setting("SPANREPLAY_DIR", ".spanreplay", "directory of the spool and of local recordings"),
    Setting("SPANREPLAY_ENDPOINT", "", "host:port of the replay service; empty: use the directory"),
    Setting(
        "SPANREPLAY_COLLECTOR",
        "",
        "OTLP/HTTP address that recordings are shipped to, `none` for nowhere; default: OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    Setting("SPANREPLAY_TOKEN", "", "bearer token for the replay service and the collector"),
    Setting("SPANREPLAY_FSYNC", "never", "when the spool is fsynced", ("never", "interval", "always")),
    Setting("SPANREPLAY_REPLAY_SOURCE", "", "what to replay: a run id, a `.replay` file or a spool file"),
    Setting("SPANREPLAY_REPLAY_PLAN", "", "the plan of the replay, as JSON, or `@FILE`"),
    Setting("SPANREPLAY_REPLAY_WARM", "", "run ids of earlier units that are replayed first, separated by commas"),
    Setting("SPANREPLAY_REPLAY_SUITE", "", "JSON file with the units that one start of the application is to replay"),
    Setting("SPANREPLAY_REPLAY_FOLDERS", "", "where the agent lies in the replay, as JSON; set for its processes"),
    Setting("SPANREPLAY_REPLAY_REPORT", "", "file that the verdict is written to, as JSON"),
    Setting("SPANREPLAY_REPLAY_GIVEN", "", "JSON file with the request that takes the place of the recorded one"),
    Setting("SPANREPLAY_REPLAY_ANSWER", "", "file that the answer to that request is written to, as JSON"),
    Setting("SPANREPLAY_REPLAY_ASKED", "", "file that requests to other services that differ are written to, as JSON"),
    Setting("SPANREPLAY_REPLAY_TIMEOUT", "", "seconds after which a replay ends, with a verdict; default: never"),
    Setting(
        "SPANREPLAY_REPLAY_IDLE",
        "",
        "seconds without a call after which a replay ends, with a verdict; 0: never. "
        "Default of `replay` without a terminal: 600, and ten times what the run took",
    ),
    Setting(
        "SPANREPLAY_REPLAY_EXPORTER",
        "",
        "the user's OTEL_TRACES_EXPORTER, which is `none` in a replay; set for its processes",
    ),
    Setting("SPANREPLAY_REPLAY_FOLDER", "", "folder for what a replay writes; default: in the temporary folder"),
    Setting("SPANREPLAY_REPLAY_FORKS", "", "descriptor of the socket on which a command asks for replays in forks"),
    Setting("SPANREPLAY_REPLAY_OWNER", "", "process id of the command that replays; the replay ends when it is gone"),
    Setting("SPANREPLAY_REPLAY_PID", "", "process that replays; its children are refused"),
    Setting(
        "SPANREPLAY_REPLAY_STRICT_ENV",
        "false",
        "whether a replay denies reads of clock, random bytes, files and variables that are not recorded",
        ("true", "false"),
    ),
    Setting(
        "SPANREPLAY_SANDBOX",
        "kernel",
        "what keeps native code of a replay from changing files: the kernel, where it can, or only what Python sees",
        ("kernel", "python"),
    ),
    Setting(
        "SPANREPLAY_RECORD_CLOCK",
        "true",
        "whether the clock and random sources that the agent's code reads are recorded",
        ("true", "false"),
    ),
    Setting(
        "SPANREPLAY_UNITS",
        "served",
        "what is a run of its own: served, each request and job of a server or worker; messages, also each message "
        "that a program's own loop takes from a broker",
        ("served", "messages"),
    ),
    Setting(
        "SPANREPLAY_AUDIT",
        "on",
        "whether I/O outside of every boundary is noted while recording; full: by an audit hook too, which is slower",
        ("on", "full", "off"),
    ),
    Setting(
        "SPANREPLAY_HUMAN",
        "ask",
        "how a question to a human behaves without a terminal: ask, as without spanreplay, or suspend the run",
        ("ask", "suspend"),
    ),
    Setting(
        "SPANREPLAY_AGENT",
        "",
        "installed distributions and modules that count as the agent, in addition to the distribution"
        " that the process was started from and all code that is not installed; comma-separated",
    ),
    Setting(
        "SPANREPLAY_PLUMBING",
        "",
        "distributions and modules whose reads of clock, random sources and files are not the agent's; comma-separated",
    ),
    Setting(
        "SPANREPLAY_SUMMARY",
        "auto",
        "whether a recorded run ends with one line on standard error: auto, only where that is a terminal, in whose "
        "foreground the agent runs",
        ("auto", "always", "never"),
    ),
    Setting("SPANREPLAY_APP", "", "name of the agent; default: OTEL_SERVICE_NAME, else the script's name"),
    Setting("SPANREPLAY_REDACT_KEY", "", "file with the key of redaction tokens; default: <dir>/redact.key"),
    Setting(
        "SPANREPLAY_SEAL",
        "true",
        "whether recordings hold the values that redaction hides, sealed: readable only with the redaction key",
        ("true", "false"),
    ),
    Setting(
        "SPANREPLAY_SIGNING_KEY",
        "",
        "file with a private key of Ed25519 in PEM, with which runs are signed at their end; `spanreplay verify`",
    ),
    Setting(
        "SPANREPLAY_USER_ID",
        "",
        "user that the run acts for; searchable; default: the first that its telemetry, framework or requests name",
    ),
    Setting("SPANREPLAY_SESSION_ID", "", "session that the run belongs to; searchable; default: as for the user"),
    Setting(
        "SPANREPLAY_USER_HEADER",
        "",
        "headers of requests and messages that name the user of their run; comma-separated, the first that is there",
    ),
    Setting("SPANREPLAY_SESSION_HEADER", "", "headers that name the session of a run; as for the user"),
    Setting(
        "SPANREPLAY_WHO",
        "",
        "function that names the user of a request or message, as module:function; it is given what came in, and gives"
        ' the user, or {"user": …, "session": …}',
    ),
    Setting(
        "SPANREPLAY_SAMPLE",
        "always",
        "which units (requests, jobs, messages) are kept, whole: always, or one or more rules, separated by commas: "
        "errors; call-errors; slow:2s; a ratio from 0 to 1",
    ),
    Setting(
        "SPANREPLAY_SAMPLE_KEEP_USERS",
        "",
        "ids of users whose units are kept, whatever SPANREPLAY_SAMPLE leaves out; comma-separated",
    ),
    Setting(
        "SPANREPLAY_REUSE",
        "",
        "calls to models that get the answer of an earlier run where that asked the same: selectors of kinds llm, "
        "embedding and retriever, such as llm:gpt-*; comma-separated; empty: none",
    ),
    Setting("SPANREPLAY_REUSE_TTL", "24h", "for how long an answer is given to later runs: 30m, 12h, 7d"),
    Setting(
        "SPANREPLAY_REUSE_SCOPE",
        "user",
        "whose answers a run is given: those of runs of the same agent, and also of the same user or session",
        ("app", "user", "session"),
    ),
    Setting(
        "SPANREPLAY_CPU_LIMIT",
        "",
        "share of one processor, like 0.2, that the recorder may take in a process that serves units; while it takes "
        "more, new units are not recorded; empty: any",
    ),
    Setting(
        "SPANREPLAY_QUEUE_LIMIT",
        "0.9",
        "share of the spool's room that may be taken; while more is, new units are not recorded, so that none is cut",
    ),
)
_BY_NAME: Final = {s.name: s for s in SETTINGS}


_IS_KNOWN: Final = type(getattr(os.environ, "_data", None)) is dict and os.name == "posix"
"""Whether `os.environ` is CPython's on POSIX: name → value, both encoded."""


def read_variable(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of a variable for ourselves; '' if it is not set.

    Not through `os.environ`, whose reads are recorded as the agent's: that costs twenty times as much, and one unit of
    work needs dozens of them.
    """
    if environ is not os.environ or not _IS_KNOWN:
        return environ.get(name, "")
    value = os.environ._data.get(os.fsencode(name))  # type: ignore[attr-defined]  # CPython's
    return "" if value is None else os.fsdecode(value)


def copy_variables() -> dict[str, str]:
    """All variables, as `dict(os.environ)`, likewise for ourselves."""
    if not _IS_KNOWN:
        return dict(os.environ)
    data = os.environ._data.copy()  # type: ignore[attr-defined]  # CPython's
    return {os.fsdecode(name): os.fsdecode(value) for name, value in data.items()}


SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)\Z")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SPAN_S_MAX: Final = 3650 * 86_400


def parse_span(text: str) -> timedelta:
    """Parse a duration: `30m`, `2h`, `7d`. Raises: ValueError."""
    match = SPAN.match(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a length of time; use 30m, 2h or 7d")
    seconds = float(match.group(1)) * _UNIT_S[match.group(2)]
    if seconds > SPAN_S_MAX:
        raise ValueError(f"{text!r} is longer than ten years")
    return timedelta(seconds=seconds)


def read_setting(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of one setting; an unknown choice warns and yields the default.

    Raises: KeyError if the table has no such setting.
    """
    setting = _BY_NAME[name]
    value = read_variable(name, environ).strip()
    if not value:
        return setting.default
    if setting.choices and value not in setting.choices:
        used = repr(setting.default) if setting.default else "the default"
        logger.warning("%s=%r is not one of %s; using %s", name, value, setting.choices, used)
        return setting.default
    return value


def read_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of local recordings, absolute."""
    return Path(read_setting("SPANREPLAY_DIR", environ)).absolute()


def read_flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Read an OTel boolean: only "true", in any case, is true."""
    return read_variable(name, environ).strip().lower() == "true"


def read_app_name(argv0: str, environ: Mapping[str, str] = os.environ) -> str:
    """The agent's name: SPANREPLAY_APP, OTEL_SERVICE_NAME, service.name, else the name of the script or module."""
    named = read_stated_name(environ)
    if named:
        return named
    if argv0 == "-m":
        return find_module(argv0) or "python"
    stem = Path(argv0).stem
    if stem == "__main__":
        stem = Path(argv0).parent.name
    return stem or "python"


def find_module(argv0: str) -> str:
    """The module of `python -m uvicorn` while Python has not yet located it; empty for anything else."""
    if argv0 != "-m":
        return ""
    return next((word for flag, word in pairwise(sys.orig_argv) if flag == "-m"), "")


def read_stated_name(environ: Mapping[str, str] = os.environ) -> str:
    """The agent's name from a setting: SPANREPLAY_APP, OTEL_SERVICE_NAME or service.name; '' without one."""
    named = read_setting("SPANREPLAY_APP", environ) or read_variable("OTEL_SERVICE_NAME", environ).strip()
    if named:
        return named
    for pair in read_variable("OTEL_RESOURCE_ATTRIBUTES", environ).split(","):
        key, _, value = pair.partition("=")
        if key.strip() == "service.name" and value.strip():
            return value.strip()
    return ""
