"""`spanreplay replay --serve`: each request to a local port replays a recorded request or job once."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from spanreplay.cli.terminal import say
from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.report.sent import name_cause
from spanreplay.report.shape import EXIT_STATUS, Verdict
from spanreplay.units.given import Answer, Given, describe_input
from spanreplay.units.http_exchange import FIRST_CALL
from spanreplay.units.stated import GIVEN

__all__ = ["Recorded", "find_recorded", "serve"]

_ADDRESS: Final = "127.0.0.1"
_NAMES: Final = ("127.0.0.1", "localhost")
_IDLE_S: Final = 60
"""How long a connection may be silent."""
_OF_SERVER: Final = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})
"""Response headers that this server writes itself."""
_TEXT: Final = "text/plain; charset=utf-8"
_SHOWN: Final = ("args", "kwargs", "event", "message", "params")
"""Members of a job's input that the example command shows."""
_SHOWN_CHARACTERS_MAX: Final = 500

Judge = Callable[[Mapping[str, str]], Verdict]
"""Replays once with these settings. Raises: SpanreplayError."""


@dataclass(frozen=True)
class Recorded:
    """The recorded input of a unit: a request, or the input of a job."""

    value: Mapping[str, Any]
    is_job: bool = False


def find_recorded(recording: Recording) -> Recorded:
    """Find the input of a unit. Raises: ConfigError if the run is not one of an HTTP request or a job."""
    first = next((call for call in recording.calls if call.boundary in (FIRST_CALL, GIVEN)), None)
    value = None if first is None else json.loads(first.response or "{}").get("value")
    if not isinstance(value, dict):
        raise ConfigError(
            f"--serve needs the run of an HTTP request or a job, but {recording.run_id} is neither",
            hint="`spanreplay ls` lists the runs; without --serve this one is replayed as it was",
        )
    if value.get("type") == "websocket":
        raise ConfigError(
            f"--serve gives one answer to one request, but {recording.run_id} is a websocket session",
            hint=f"without --serve, `replay {recording.run_id}` gives its messages to the code that is there now",
        )
    return Recorded(value, is_job=first is not None and first.boundary == GIVEN)


def serve(port: int, recorded: Recorded, judge: Judge, show: Callable[[Verdict], int]) -> int:
    """Answer requests until Ctrl-C; return the exit status of the last replay, or 0. Raises: ConfigError."""
    try:
        server = _Port((_ADDRESS, port), _Request)
    except OSError as exc:
        raise ConfigError(f"--serve can't use port {port}: {exc.strerror}", hint="--serve 0 takes a free one") from exc
    with server:
        server.recorded, server.judge, server.show = recorded, judge, show
        url = f"http://{_ADDRESS}:{server.server_port}"
        say(f"serving {url}: each request runs one replay; parts that it leaves out stay as recorded; Ctrl-C stops")
        say(f"  {_name_command(recorded, url)}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return server.status
    return server.status


def _name_command(recorded: Recorded, url: str) -> str:
    """A curl command that sends the recorded input."""
    value = recorded.value
    if not recorded.is_job:
        return f"curl -X {value.get('method', 'GET')} {shlex.quote(url + _target_of(value))}"
    shown = json.dumps({name: value[name] for name in _SHOWN if name in value}, ensure_ascii=False)
    return f"curl --json {shlex.quote(shown if len(shown) <= _SHOWN_CHARACTERS_MAX else '{}')} {url}"


def _target_of(recorded: Mapping[str, Any]) -> str:
    query = recorded.get("query_string")
    path = recorded.get("raw_path") or quote(str(recorded.get("path", "/")))  # WSGI servers only give it decoded
    return f"{path}{f'?{query}' if query else ''}"


class _Port(HTTPServer):
    """The listening server; handles one request at a time."""

    request_queue_size = 128  # the others wait: with the default of 5 the kernel may reset their connections
    recorded: Recorded
    judge: Judge
    show: Callable[[Verdict], int]
    status = 0


class _Refused(Exception):
    """A request that is not replayed: the HTTP status, and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Request(BaseHTTPRequestHandler):
    """Handler of one request to the application."""

    server: _Port
    timeout = _IDLE_S
    server_version, sys_version = "spanreplay", ""

    def __getattr__(self, name: str) -> Any:
        """Answer every HTTP method."""
        if name.startswith("do_"):
            return self._replay
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name of the library's argument
        """No-op: the verdict is printed instead."""

    def _replay(self) -> None:
        try:
            told_text, title, changed = self._take(self._read())
        except _Refused as refused:
            self._send(Answer(refused.status, [("content-type", _TEXT)], f"{refused}\n".encode()))
            self.close_connection = True
            return
        with tempfile.TemporaryDirectory(prefix="spanreplay-served-") as folder:
            told, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            told.write_text(told_text, encoding="utf-8")
            settings = {"SPANREPLAY_REPLAY_GIVEN": str(told), "SPANREPLAY_REPLAY_ANSWER": str(answer)}
            self._send(self._judge(title, changed, settings, answer))

    def _take(self, given: Given) -> tuple[str, str, str]:
        """The input for the replay as JSON, a title for it, and what differs, in words. Raises: _Refused."""
        recorded = self.server.recorded
        if not recorded.is_job:
            return given.to_json(), f"{given.method} {given.target}", _find_changes(given, recorded.value)
        members = _read_members(given, recorded.value)
        changed = [name for name, value in members.items() if value != recorded.value[name]]
        return describe_input(members), "job", f"changed: {', '.join(changed)}" if changed else ""

    def _judge(self, title: str, changed: str, settings: Mapping[str, str], path: Path) -> Answer:
        server = self.server
        say(f"{title}{f' ({changed})' if changed else ''}")
        try:
            what = "input" if server.recorded.is_job else "request"
            evidence = f"the {what} differs from the recorded one ({changed})" if changed else ""
            verdict = name_cause(server.judge(settings), evidence, "serve")
        except SpanreplayError as exc:
            server.status = EXIT_STATUS["error"]
            say(f"error: {exc}")
            why = f"{exc}\n{exc.hint}\n"
        else:
            server.status = server.show(verdict)
            why = f"no answer: the verdict is {verdict['verdict']}; see the report in spanreplay's terminal\n"
        answer = Answer.read(path)
        return answer or Answer(HTTPStatus.BAD_GATEWAY, [("content-type", _TEXT)], why.encode())

    def _read(self) -> Given:
        """Read the request. Raises: _Refused."""
        host = self.headers.get("host", "").rpartition(":")[0] or self.headers.get("host", "")
        if host not in _NAMES:
            raise _Refused(HTTPStatus.FORBIDDEN, f"only requests to {' and '.join(_NAMES)} are answered")
        if "transfer-encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "send a body with a content-length")
        length = self.headers.get("content-length", "")
        if length and not (length.isascii() and length.isdecimal()):
            raise _Refused(HTTPStatus.BAD_REQUEST, "content-length is not a number")
        if int(length or 0) > config.BODY_BYTES_MAX:
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {config.BODY_BYTES_MAX:,} bytes"
            )
        body = self.rfile.read(int(length)) if int(length or 0) else None
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        return Given(self.command, self.path, headers, body)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _OF_SERVER:
                self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _read_members(given: Given, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Read the members of a job's input from a request. Raises: _Refused."""
    if given.target != "/":
        raise _Refused(HTTPStatus.NOT_FOUND, "a job has no path: send its input to /")
    try:
        found = json.loads(given.body or b"{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _Refused(HTTPStatus.BAD_REQUEST, "the input of a job is a JSON object")
    unknown = [name for name in found if name not in recorded]
    if unknown:
        known = ", ".join(recorded)
        raise _Refused(HTTPStatus.BAD_REQUEST, f"the recorded input has no member {unknown[0]!r}; it has {known}")
    return found


def _find_changes(given: Given, recorded: Mapping[str, Any]) -> str:
    """Name the parts of a request that differ from the recording, in words."""
    path, _, query = given.target.partition("?")
    recorded_path, _, recorded_query = _target_of(recorded).partition("?")
    changed = [
        name
        for name, is_other in (
            ("method", given.method != recorded.get("method")),
            ("path", unquote(path) != unquote(recorded_path)),
            ("query", query != recorded_query),
            ("body", given.body is not None),
        )
        if is_other
    ]
    return f"changed: {', '.join(changed)}" if changed else ""
