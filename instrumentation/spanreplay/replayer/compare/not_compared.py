"""Lists the effects that a verdict doesn't cover, in words: all others that leave through a boundary are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import ALONE
from spanreplay.replayer.compare.changed_files import list_shared
from spanreplay.runtime.wire.http_headers import CONNECTION, CREDENTIALS, MADE_BY_SDKS, TRACE

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording

STDOUT, STDERR = "stdout", "stderr"


@dataclass(frozen=True)
class NotCompared:
    """One effect that crosses a boundary and is not compared."""

    what: str
    """One word or a few, for a line of the report."""
    why: str
    names: tuple[str, ...] = ()
    """The fields, arguments or variables; a trailing `*` matches any ending."""
    kinds: frozenset[str] = frozenset()
    """Kinds of calls that have it; empty: every run."""
    begins: tuple[str, ...] = ()
    """Prefixes of the names of its calls; empty: all calls of these kinds."""

    def applies(self, call: CallRecord) -> bool:
        """Whether a recorded call has it."""
        return call.kind in self.kinds and (not self.begins or call.name.startswith(self.begins))

    def to_json(self) -> dict[str, Any]:
        """Return the form of schema divergence/1."""
        return {"what": self.what, **({"names": list(self.names)} if self.names else {}), "why": self.why}


_STDERR: Final = NotCompared(STDERR, "logs and progress go there; --compare stderr compares what the agent writes")
_NATIVE: Final = NotCompared(
    "stderr of programs and native code", "it goes past the interpreter; a program's own is compared where it is a pipe"
)
_WIRE: Final = frozenset({"http", "llm", "embedding", "mcp", "retriever"})
_TABLE: Final = (
    NotCompared("log files", "log records are rebuilt in a replay, and the agent does not read them back"),
    NotCompared(
        "credential, connection and trace headers",
        "they differ between machines, and the agent does not choose them",
        tuple(sorted(CREDENTIALS | CONNECTION | TRACE)) + tuple(f"{each}*" for each in MADE_BY_SDKS),
        kinds=_WIRE,
    ),
    NotCompared(
        "variables of Python and of telemetry",
        "a replay sets them itself for the programs of its agent",
        ("OTEL_*", "PYTEST_*", "SPANREPLAY_*", "BAGGAGE", "TRACEPARENT", "TRACESTATE", "PYTHONHASHSEED", "_"),
        kinds=frozenset({"tool"}),
        begins=("subprocess.",),
    ),
    NotCompared(
        "frames that DuckDB reads",
        "a statement names them, and their content is not recorded",
        kinds=frozenset({"tool"}),
        begins=("duckdb.",),
    ),
    NotCompared(
        "files of HDF5 and LanceDB",
        "they change their files in native code, and write different bytes each time",
        kinds=frozenset({"tool"}),
        begins=("h5py.", "lancedb."),
    ),
    NotCompared(
        "options of sockets",
        "they decide how a datagram travels, and none is sent",
        kinds=frozenset({"tool"}),
        begins=("socket.",),
    ),
    NotCompared(
        "ids of other processes",
        "processes outside the run have a different id each time",
        ("pid", "pgid"),
        kinds=frozenset({"tool"}),
        begins=("os.kill",),
    ),
)


def find_not_compared(
    recording: Recording,
    outputs: Mapping[str, Mapping[str, Any]],
    dropped: tuple[str, ...] = (),
    unreadable: tuple[str, ...] = (),
    by_size: tuple[str, ...] = (),
    *,
    is_hidden: bool = False,
) -> list[dict[str, Any]]:
    """Return the recorded effects that aren't compared, the most general first; `outputs` as in a verdict.

    `dropped` are the addresses to which libraries tried to send datagrams; `unreadable` are the random sources whose
    recorded values are sealed with another redaction key; `by_size` are files whose hash is made with another key.
    `is_hidden`: requests, output or files hold secrets whose tokens were made with another key.
    """
    found = [_NATIVE if outputs.get(STDERR, {}).get("compared") else _STDERR]
    found += [each for each in _TABLE if not each.kinds or any(map(each.applies, recording.calls))]
    if any(call.meta.get(ALONE) for call in recording.calls):
        why = "a replay answers their reports with nothing, so they may ask for less"
        found.append(NotCompared("whether reporting tools ask for what they asked for by themselves", why))
    if dropped:
        found.append(NotCompared("datagrams of libraries", "metrics and reports: a replay drops them", dropped))
    if unreadable:
        why = "they are sealed with another redaction key, so new ones were drawn"
        found.append(NotCompared(f"values of {', '.join(unreadable)}", why, unreadable))
    if by_size:
        why = "their hashes are made with another redaction key; their sizes are equal or reported"
        found.append(NotCompared(f"content of {', '.join(by_size)}", why, by_size))
    if shared := list_shared(recording.root.manifest.get("files")):
        why = "others wrote to them at the same time; lines that are appended must be among the recorded"
        found.append(NotCompared(f"content of {', '.join(shared)}", why, shared))
    if is_hidden:
        why = "their tokens are made with another redaction key: compared is only which of them are equal to each other"
        found.append(NotCompared("values that redaction hides", why))
    return [each.to_json() for each in found]
