"""A request or a job that `replay --serve` gives to an application in place of the recorded one, and what it answers.

The recording stays as it is: its request and body are served as ever, and changed on their way to the application.
Headers that belong to a connection or to a body are those of the recording, unless another body is given.
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
from spanreplay.runtime.lanes import current_lane, is_earlier
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
"""Headers that any client sends by itself: the recorded ones stand."""
_OF_BODY: Final = frozenset({"content-length", "content-encoding", "transfer-encoding"})
_LENGTH: Final = "content-length"
_INPUT: Final = "input"
RAISED: Final = "raised"
"""Member of a job's output: what it raised."""
_ENVIRON: Final = "environ"
_PATH_INFO: Final = "PATH_INFO"
_TARGETS: Final = ("RAW_URI", "REQUEST_URI")
"""What servers of WSGI call the request's target."""


@dataclass(frozen=True)
class Given:
    """A request, as far as it takes the place of the recorded one."""

    method: str
    target: str
    """Path and query as they stand in the request's line; empty: the recorded ones."""
    headers: Sequence[tuple[str, str]]
    """Names in small letters."""
    body: bytes | None
    """None: the recorded one."""
    without: Sequence[str] = ()
    """Headers that are left out, in small letters."""

    def to_json(self) -> str:
        """For `load`."""
        body = None if self.body is None else base64.b64encode(self.body).decode("ascii")
        found = {"method": self.method, "target": self.target, "headers": [*self.headers], "body": body}
        return json.dumps({**found, "without": [*self.without]})


@dataclass(frozen=True)
class Answer:
    """What the application answered."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    @classmethod
    def read(cls, path: Path) -> Answer | None:
        """What `write_out` has written; None if the application has not answered."""
        content = path.read_bytes() if path.exists() else b""
        if not content:  # whoever guards a replay's files may have made it
            return None
        found = json.loads(content)
        headers = [(str(name), str(value)) for name, value in found["headers"]]
        return cls(int(found["status"]), headers, base64.b64decode(found["body"]))


class _State:
    given: Given | None = None
    members: Mapping[str, Any] | None = None
    """Members of a job's input that take the place of the recorded ones."""
    is_asked = False
    """Whether somebody waits for what the application answers."""
    answer: Answer | None = None


def load() -> None:
    """Read the request that the settings name; before anything of the replay is in the way."""
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
    """What is given to the unit that works here: an earlier one, which warms up, has its recorded request."""
    return None if _is_earlier() else _State.given


def _is_earlier() -> bool:
    run = active_run()
    return run is not None and is_earlier(current_lane(run.root_lane).path)


def has_body() -> bool:
    """Whether a body is given."""
    given = _find_given()
    return given is not None and given.body is not None


def read_asked(path: Path) -> dict[int, Mapping[str, Any]]:
    """Number of the recorded call → the request of now, as `write_out` has written them."""
    content = path.read_bytes() if path.exists() else b""
    return {int(call): request for call, request in json.loads(content or b"{}").items()}


def put_request(described: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded request with what is given in its place."""
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
    """Variables of WSGI that say the path, whose letters stand for bytes."""
    path = unquote_to_bytes(given.target.partition("?")[0]).decode("latin-1").removeprefix(root_path)
    changed = {_PATH_INFO: path, **{name: given.target for name in _TARGETS if name in environ}}
    return {**environ, **changed}


def put_body(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recorded body, or the one that is given."""
    given = _find_given()
    if given is None or given.body is None:
        return described
    body = Body()
    body.add(given.body)
    return {**body.describe(), PARTS: body.lengths}


def keep_answer(status: int | None, headers: Sequence[Mapping[str, str]], body: Body) -> None:
    """Keep what the application answers, where somebody waits for it."""
    if _State.is_asked and status is not None and body.is_kept and not _is_earlier():
        pairs = [(name, value) for each in headers for name, value in each.items()]
        _State.answer = Answer(status, pairs, body.whole)


def describe_input(members: Mapping[str, Any]) -> str:
    """For `load`: members of a job's input."""
    return json.dumps({_INPUT: members})


def put_input(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recorded input of a job with what is given in its place."""
    return recorded if _State.members is None or _is_earlier() else {**recorded, **_State.members}


def keep_output(output: Mapping[str, Any]) -> None:
    """Keep what a job gives or raises, where somebody waits for it."""
    if not _State.is_asked or _is_earlier():
        return
    with suppress(Unserializable):  # the run says so
        body = json.dumps(codec.encode(dict(output)), ensure_ascii=False).encode()
        status = HTTPStatus.INTERNAL_SERVER_ERROR if RAISED in output else HTTPStatus.OK
        _State.answer = Answer(status.value, [("content-type", "application/json")], body)


def write_out(asked: Mapping[int, str]) -> None:
    """Write what was kept, and the requests to other services that differ, to where the settings say. Raises: OSError.

    `asked`: number of the recorded call → the request of now, redacted, as JSON.
    """
    place = config.read_setting("SPANREPLAY_REPLAY_ASKED")
    if place:
        Path(place).write_text(json.dumps({str(call): json.loads(text) for call, text in asked.items()}), "utf-8")
    path, answer = config.read_setting("SPANREPLAY_REPLAY_ANSWER"), _State.answer
    if path and answer is not None:
        content = base64.b64encode(answer.body).decode("ascii")
        told = {"status": answer.status, "headers": [*answer.headers], "body": content}
        Path(path).write_text(json.dumps(told), encoding="utf-8")
