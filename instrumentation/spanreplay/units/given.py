"""The request or job that `replay --serve` substitutes for the recorded one, and the application's answer.

The recording is unchanged: its request and body are served as usual, and modified on their way to the application.
Connection and body headers come from the recording; body headers are replaced if a new body is given.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from spanreplay import codec
from spanreplay.model import config
from spanreplay.model.errors import Unserializable
from spanreplay.model.lane_names import is_earlier
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import active_run
from spanreplay.units.asgi_messages import PARTS, Body

__all__ = [
    "Answer",
    "Given",
    "describe_input",
    "has_body",
    "keep_answer",
    "keep_output",
    "load",
    "put_body",
    "put_input",
    "put_request",
    "read_asked",
    "write_out",
]

_OF_CLIENT: Final = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    }
)
"""Headers that any client adds by itself: the recorded values are kept."""
_OF_BODY: Final = frozenset({"content-length", "content-encoding", "transfer-encoding"})
_LENGTH: Final = "content-length"
_INPUT: Final = "input"
RAISED: Final = "raised"
"""Member of a job's output: the exception it raised."""
_ENVIRON: Final = "environ"
_PATH_INFO: Final = "PATH_INFO"
_TARGETS: Final = ("RAW_URI", "REQUEST_URI")
"""Names that WSGI servers use for the request target."""


@dataclass(frozen=True)
class Given:
    """The parts of a request that replace those of the recorded one."""

    method: str
    target: str
    """Path and query as in the request line; empty: the recorded ones."""
    headers: Sequence[tuple[str, str]]
    """Names are lowercase."""
    body: bytes | None
    """None: the recorded body."""
    without: Sequence[str] = ()
    """Lowercase names of headers to leave out."""

    def to_json(self) -> str:
        """Encode for `load`."""
        body = None if self.body is None else base64.b64encode(self.body).decode("ascii")
        found = {"method": self.method, "target": self.target, "headers": [*self.headers], "body": body}
        return json.dumps({**found, "without": [*self.without]})


@dataclass(frozen=True)
class Answer:
    """The application's answer."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    @classmethod
    def read(cls, path: Path) -> Answer | None:
        """Read the file that `write_out` wrote; None if the application hasn't answered."""
        content = path.read_bytes() if path.exists() else b""
        if not content:  # the guard of a replay's files may have created it empty
            return None
        found = json.loads(content)
        headers = [(str(name), str(value)) for name, value in found["headers"]]
        return cls(int(found["status"]), headers, base64.b64decode(found["body"]))


class _State:
    given: Given | None = None
    members: Mapping[str, Any] | None = None
    """Members of a job's input that replace the recorded ones."""
    is_asked = False
    """Whether the caller wants the application's answer."""
    answer: Answer | None = None


def load() -> None:
    """Read the request or input that the settings name. Call it before the replay patches anything."""
    path = config.read_setting("SPANREPLAY_REPLAY_GIVEN")
    _State.is_asked = bool(config.read_setting("SPANREPLAY_REPLAY_ANSWER"))
    if path and _State.given is None and _State.members is None:
        found = json.loads(Path(path).read_bytes())
        if _INPUT in found:
            _State.members = found[_INPUT]
            return
        body = None if found["body"] is None else base64.b64decode(found["body"])
        headers = [(str(name), str(value)) for name, value in found["headers"]]
        without = [str(name) for name in found["without"]]
        _State.given = Given(str(found["method"]), str(found["target"]), headers, body, without)


def _find_given() -> Given | None:
    """Return the request given to the current unit; None for a warm-up unit, which gets its recorded request."""
    return None if _is_earlier() else _State.given


def _is_earlier() -> bool:
    run = active_run()
    return run is not None and is_earlier(current_lane(run.root_lane).path)


def has_body() -> bool:
    """Whether a body is given."""
    given = _find_given()
    return given is not None and given.body is not None


def read_asked(path: Path) -> dict[int, Mapping[str, Any]]:
    """Read the file that `write_out` wrote: number of the recorded call → the replay's request."""
    content = path.read_bytes() if path.exists() else b""
    return {int(call): request for call, request in json.loads(content or b"{}").items()}


def put_request(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded request with the given parts replaced."""
    given = _find_given()
    if given is None:
        return dict(described)
    changed = {"method": given.method, **(_put_target(described, given.target) if given.target else {})}
    found = {**described, **changed, "headers": _merge(described.get("headers") or (), given)}
    if given.target and isinstance(described.get(_ENVIRON), Mapping):
        found[_ENVIRON] = _put_environ(described[_ENVIRON], str(described.get("root_path", "")), given)
    return found


def _put_target(described: Mapping[str, Any], target: str) -> dict[str, str]:
    raw_path, mark, query = target.partition("?")
    changed = {"path": unquote(raw_path), "query_string": query}
    if "raw_path" in described:
        changed["raw_path"] = raw_path
    if not mark and "query_string" not in described:
        del changed["query_string"]
    return changed


def _merge(recorded: Sequence[Mapping[str, str]], given: Given) -> list[dict[str, str]]:
    sent = {name for name, _ in given.headers} - _OF_CLIENT
    replaced = sent | {*given.without} | (_OF_BODY if given.body is not None else set())
    kept = [dict(each) for each in recorded if not {name.lower() for name in each} & replaced]
    added = [{name: value} for name, value in given.headers if name in sent]
    return [*kept, *added, *([] if given.body is None else [{_LENGTH: str(len(given.body))}])]


def _put_environ(environ: Mapping[str, Any], root_path: str, given: Given) -> dict[str, Any]:
    """Replace the WSGI variables for the path, which hold bytes as Latin-1 text."""
    path = unquote_to_bytes(given.target.partition("?")[0]).decode("latin-1").removeprefix(root_path)
    changed = {_PATH_INFO: path, **{name: given.target for name in _TARGETS if name in environ}}
    return {**environ, **changed}


def put_body(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the given body, or else the recorded one."""
    given = _find_given()
    if given is None or given.body is None:
        return described
    body = Body()
    body.add(given.body)
    return {**body.describe(), PARTS: body.lengths}


def keep_answer(status: int | None, headers: Sequence[Mapping[str, str]], body: Body) -> None:
    """Keep the application's answer if the caller wants it."""
    if _State.is_asked and status is not None and body.is_kept and not _is_earlier():
        pairs = [(name, value) for each in headers for name, value in each.items()]
        _State.answer = Answer(status, pairs, body.whole)


def describe_input(members: Mapping[str, Any]) -> str:
    """Encode members of a job's input for `load`."""
    return json.dumps({_INPUT: members})


def put_input(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's recorded input with the given members replaced."""
    return recorded if _State.members is None or _is_earlier() else {**recorded, **_State.members}


def keep_output(output: Mapping[str, Any]) -> None:
    """Keep a job's result or exception if the caller wants it."""
    if not _State.is_asked or _is_earlier():
        return
    with suppress(Unserializable):  # the run reports it
        body = json.dumps(codec.encode(dict(output)), ensure_ascii=False).encode()
        status = HTTPStatus.INTERNAL_SERVER_ERROR if RAISED in output else HTTPStatus.OK
        _State.answer = Answer(status.value, [("content-type", "application/json")], body)


def write_out(asked: Mapping[int, str]) -> None:
    """Write the kept answer, and outgoing requests that differ, to the files named in the settings. Raises: OSError.

    `asked`: number of the recorded call → the replay's request, redacted, as JSON.
    """
    place = config.read_setting("SPANREPLAY_REPLAY_ASKED")
    if place:
        Path(place).write_text(json.dumps({str(call): json.loads(text) for call, text in asked.items()}), "utf-8")
    path, answer = config.read_setting("SPANREPLAY_REPLAY_ANSWER"), _State.answer
    if path and answer is not None:
        content = base64.b64encode(answer.body).decode("ascii")
        told = {"status": answer.status, "headers": [*answer.headers], "body": content}
        Path(path).write_text(json.dumps(told), encoding="utf-8")
