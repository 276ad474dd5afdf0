"""The calls that a run made, as assertions and their matchers see them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from spanreplay.codec import Unserializable, decode
from spanreplay.dialects import find_dialect
from spanreplay.model import attributes as names
from spanreplay.model import config
from spanreplay.model.call import CallRecord, Kind, Outcome, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.redact import Redactor, RunRedactor, load_or_create_key
from spanreplay.runtime.calls.bodies import BODY
from spanreplay.seams.machine.arguments import FUNCTIONS, METHODS, STATEMENTS

__all__ = ["JUDGE_LANE", "CallsOfRun", "MadeCall", "RunLike", "is_of_judge", "read_calls"]

JUDGE_LANE: Final = "judge"
"""Label of the lane in which a judge asks its model: its calls are not the agent's."""
_CALL_TOOL: Final = "tools/call"
_MACHINE_MODULES: Final = frozenset(name.partition(".")[0] for name in (*FUNCTIONS, *STATEMENTS, *METHODS))
_LOOKS: Final = frozenset(
    {"access", "earlier_content", "listdir", "lookup", "lstat", "open", "readlink", "scandir", "stat"}
)
"""Names of reads of files and folders."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@runtime_checkable
class HoldsCalls(Protocol):
    """A block of `spanreplay.record` or `spanreplay.replay`, or the fixture `replay_session`."""

    @property
    def redactor(self) -> RunRedactor | None:
        """Replaces secrets as the run's calls do."""

    def recording(self) -> Recording:
        """The calls so far."""


RunLike: TypeAlias = "HoldsCalls | Recording | str | os.PathLike[str]"
"""A run that is recorded or replayed right now, a recording, or the name of one: a file or a run id."""


@dataclass(frozen=True)
class MadeCall:
    """One call of a run. Secrets in it are tokens, as in the recording."""

    number: int
    """Its number in the run, as `spanreplay show` prints it."""
    kind: str
    """tool, mcp, llm, retriever, human, http …"""
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """By name; of a call to a model, the members of the request's body."""
    result: Any = None
    """What the call returned; of a call to a model, the text of its answer."""
    error: str = ""
    """What it raised, or the provider's error; '' if it succeeded."""
    effect: str = ""
    """pure, read, write or irreversible."""
    function: str = ""
    """The function that made it."""
    asked: tuple[MadeCall, ...] = ()
    """Of a call to a model: the calls of tools that its answer asks for."""

    is_tool: bool = False
    """Whether it is a call of a tool, an MCP tool included; files, programs and databases are none."""
    span_id: str = ""
    """The id of its span."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_shorten(value)}" for name, value in self.arguments.items())
        prefix = "" if self.is_tool else f"{self.kind}:"
        return f"{prefix}{self.name}" + (f"({shown})" if self.is_tool else "")


@dataclass(frozen=True)
class CallsOfRun:
    """The agent's calls in start order, without those of a judge and without a tool's own MCP call."""

    calls: tuple[MadeCall, ...]
    redact: Callable[[Any], Any] | None
    """Replaces secrets in a value as they are replaced in the calls; None without the recording's key."""


def read_calls(run: RunLike) -> CallsOfRun:
    """Read the calls of a run. Raises: ConfigError for anything that has no calls; SourceError, ServiceError."""
    if isinstance(run, Mapping):
        raise ConfigError(
            "a verdict does not hold the calls of its run",
            hint="give the fixture replay_session, the block of spanreplay.replay, or the recording's file",
        )
    if isinstance(run, Recording):
        recording, redactor = run, None
    elif isinstance(run, (str, os.PathLike)):
        recording, redactor = _load(os.fspath(run)), None
    elif isinstance(run, HoldsCalls):
        recording, redactor = run.recording(), run.redactor
    else:
        raise ConfigError(
            f"{type(run).__name__} has no calls",
            hint="give the fixture replay_session, a block of spanreplay.record or replay, a file or a run id",
        )
    _warn_of_holes(recording)
    redactor = redactor or _find_redactor(recording)
    calls = tuple(_read_call(each) for each in _pick(recording.calls))
    return CallsOfRun(calls, None if redactor is None else redactor.value)


def is_of_judge(lane: str) -> bool:
    """Whether a lane is a judge's, or below one."""
    return any(part.partition("#")[0] == JUDGE_LANE for part in lane.split("/"))


def _load(source: str) -> Recording:
    from spanreplay.recording.source import load_source
    from spanreplay.runtime.process.surroundings import set_aside

    with set_aside():  # a test may load a baseline while it is recorded
        return load_source(source)


def _warn_of_holes(recording: Recording) -> None:
    """A finished recording with holes may lack calls: say so, because no assertion can."""
    state = recording.completeness()
    if recording.root.manifest and not state.is_complete:
        reasons = "; ".join(state.reasons[:3])
        warnings.warn(f"run {recording.run_id} is incomplete, so calls may be missing: {reasons}", stacklevel=4)


def _find_redactor(recording: Recording) -> RunRedactor | None:
    """The redactor whose key made the recording's tokens, if that key is here."""
    named = config.read_setting("SPANREPLAY_REDACT_KEY")
    path = Path(named) if named else config.read_data_dir() / "redact.key"
    if not path.is_file():
        return None
    redactor = Redactor(*load_or_create_key(path, is_named=bool(named))).run()
    return redactor if redactor.fingerprint == recording.root.env.get(names.REDACTION_KEY) else None


def _pick(calls: Sequence[CallRecord]) -> Iterator[CallRecord]:
    by_seq = {call.seq: call for call in calls}
    for call in calls:
        parent = by_seq.get(call.parent)
        is_inner = parent is not None and parent.kind == Kind.TOOL.value and parent.name == call.name
        if not is_inner and not is_of_judge(call.lane):
            yield call


def _read_call(call: CallRecord) -> MadeCall:
    request, response = _parse(call.request), _parse(call.response)
    if "url" in request and "method" in request:
        return _read_exchange(call, request, response)
    arguments = _decode(request.get("arguments", {}))
    is_tool = call.kind == Kind.TOOL.value and not _is_of_machine(call)
    if call.kind == Kind.MCP.value and isinstance(arguments, Mapping):
        parameters = arguments.get("params") or {}
        is_tool = arguments.get("method") == _CALL_TOOL
        arguments = parameters.get("arguments") or {} if is_tool else parameters
    result = response.get("items") if "items" in response else response.get("value")
    return MadeCall(
        number=call.number,
        kind=call.kind,
        name=call.name,
        arguments=arguments if isinstance(arguments, Mapping) else {"": arguments},
        result=_decode(result),
        error=_read_error(call, response),
        effect=call.effect,
        function=_function_of(call),
        is_tool=is_tool,
        span_id=call.span_id,
    )


def _is_of_machine(call: CallRecord) -> bool:
    """Whether a call is a file, a program, a socket or a database, which are recorded as tools too.

    They have the name of a function that is recorded at the level of the machine, and no body of the agent's.
    """
    if BODY in call.meta or call.call_id:
        return False
    first, dot, _ = call.name.partition(".")
    return first in (_MACHINE_MODULES if dot else _LOOKS)


def _read_exchange(call: CallRecord, request: Mapping[str, Any], response: Mapping[str, Any]) -> MadeCall:
    body = request.get("body")
    arguments = body if isinstance(body, Mapping) else {"url": request["url"]}
    made = MadeCall(call.number, call.kind, call.name, arguments, effect=call.effect, function=_function_of(call))
    made = replace(made, span_id=call.span_id)
    chunks = response.get("chunks") or []
    texts = [each[1] for each in chunks if isinstance(each, list) and len(each) == 2 and isinstance(each[1], str)]
    status = response.get("status")
    error = _read_error(call, response)
    dialect = find_dialect(str(request["method"]), str(request["url"]))
    if dialect is None or not isinstance(status, int):
        error = error or (f"status {status}" if isinstance(status, int) and status >= 400 else "")
        return replace(made, result="".join(texts), error=error)
    found = dialect.read_response(status, texts, any(text.startswith(("data:", "event:")) for text in texts))
    asked = tuple(
        MadeCall(call.number, Kind.TOOL.value, each.name, _read_arguments(each.arguments), is_tool=True)
        for each in found.tool_calls
    )
    return replace(made, result=found.text, error=error or found.error, asked=asked)


def _read_arguments(text: str) -> Mapping[str, Any]:
    """A model's arguments; under the name '' if they are not a JSON object."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"": value}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return _NOTHING
    return value if isinstance(value, dict) else _NOTHING


def _decode(value: Any) -> Any:
    """The Python value; its JSON form if the codec does not know its type here."""
    try:
        return decode(value)
    except Unserializable:
        return value


def _read_error(call: CallRecord, response: Mapping[str, Any]) -> str:
    error = response.get("error")
    if isinstance(error, Mapping):
        texts = ", ".join(str(each) for each in error.get("args") or ())
        return f"{str(error.get('class', '')).rpartition(':')[2]}: {texts}".removesuffix(": ")
    return call.outcome if call.outcome in (Outcome.ERROR.value, Outcome.CANCELLED.value) else ""


def _function_of(call: CallRecord) -> str:
    """`agent.py:9 ask` → `ask`: line numbers change with every edit."""
    return call.code.rpartition(" ")[2] if " " in call.code else ""


def _shorten(value: Any, characters_max: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"
