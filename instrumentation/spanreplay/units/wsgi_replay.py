"""Replays a recorded request in a WSGI application, and compares its response."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from spanreplay.model.call import Effect
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.wire.packing import PACKED
from spanreplay.units import given
from spanreplay.units.asgi_messages import cut_body
from spanreplay.units.http_exchange import BODY, DISCONNECT, KIND, REQUEST, read_in
from spanreplay.units.stated import LANE
from spanreplay.units.wsgi import PARTS_TAKEN, Outgoing, WsgiApp
from spanreplay.units.wsgi_environ import build_environ, is_of_file

__all__ = ["replay_wsgi_request"]


def replay_wsgi_request(app: WsgiApp) -> None:
    """Replay the current recorded request through an application; the session keeps any differences."""
    run = active_run()
    if run is None:
        raise AssertionError("only a replay has a recorded request")
    session = run.resolver.answers
    try:
        lane = Lane(LANE if session.extent is None else session.extent.lane)
        with inside_lane(lane):
            _Replayed(run, lane).serve(app)
            if session.extent is not None:
                session.extent.is_over = True
            session.gate.wait_until(
                lambda: session.is_stopped or (not run.has_calls_under_way() and session.is_played())
            )
    except ReplayMiss:
        return  # the session has noted it


class _Replayed:
    """Plays the server to the application for a recorded request."""

    def __init__(self, run: Run, lane: Lane) -> None:
        self._run = run
        self._lane = lane
        self._outgoing = Outgoing()

    def serve(self, app: WsgiApp) -> None:
        """Call the application with the recorded request. Raises: ReplayMiss."""
        environ = build_environ(given.put_request(_serve(REQUEST)), _Input(self._run, self._lane), os.environ)
        body = self._find(BODY, is_opened=True)
        if isinstance(body, dict) and PACKED in body and not given.has_body() and "CONTENT_LENGTH" in environ:
            # Compression can't always reproduce the same bytes, and an application reads no more than CONTENT_LENGTH
            environ["CONTENT_LENGTH"] = str(sum(map(len, cut_body(body))))
        response, raised = self._outgoing.response, None
        try:
            result = app(environ, self._outgoing.wrap(self._start))
            response.is_cut_by_server = is_of_file(result, environ)
            try:
                self._take(result)
            finally:
                if hasattr(result, "close"):
                    result.close()
        except ReplayMiss:
            raise
        except Exception as exc:  # noqa: BLE001 -- the server would have received it
            raised = exc
        is_gone = self._outgoing.is_gone
        if is_gone or (raised is None and not response.is_complete):
            read_in(DISCONNECT, None)
        response.record(None if is_gone else raised)

    def _start(self, *_: Any, **__: Any) -> Callable[[bytes], object]:
        """`start_response` without a server: discard written data, and fail where the client had disconnected."""
        taken = self._find_taken()

        def write(_: bytes) -> None:
            if self._outgoing.response.parts == taken:
                raise BrokenPipeError("the client was gone here")

        return write

    def _take(self, result: Any) -> None:
        """Take as many parts as the server took. Raises: ReplayMiss."""
        taken = self._find_taken()
        if type(result) in (list, tuple):
            for part in result:
                self._outgoing.response.add(part)
            self._outgoing.complete()
            return
        parts = iter(result)
        while self._outgoing.response.parts != taken:
            try:
                part = next(parts)
            except StopIteration:
                self._outgoing.complete()
                return
            self._outgoing.add(part)

    def _find_taken(self) -> int:
        """Return how many parts the server took before the client disconnected; -1 if it took all."""
        value = self._find(DISCONNECT)
        return int(value[PARTS_TAKEN]) if isinstance(value, dict) else -1

    def _find(self, name: str, *, is_opened: bool = False) -> Any:
        """Return the recorded value of an incoming call; None if there is none.

        `is_opened`: as it is served, with hidden values restored where possible.
        """
        session = self._run.resolver.answers
        call = session.index.at(self._lane.path, f"{KIND}:{name}", 0)
        if call is None:
            return None
        response = session.hidden.open_response(self._run.redactor, call) if is_opened else call.response
        return json.loads(response)["value"]


class _Input:
    """A file with the recorded body, which is served when the application first reads it. Raises: ReplayMiss."""

    def __init__(self, run: Run, lane: Lane) -> None:
        self._run = run
        self._lane = lane
        self._file: io.BytesIO | None = None

    def _open(self) -> io.BytesIO:
        if self._file is None:
            index = self._run.resolver.answers.index
            has_body = index.at(self._lane.path, f"{KIND}:{BODY}", 0) is not None
            self._file = io.BytesIO(b"".join(cut_body(given.put_body(_serve(BODY) if has_body else {}))))
        return self._file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._open())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open(), name)


def _serve(name: str) -> Any:
    return call_sync(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), _never)


def _never() -> Any:
    raise ReplayMiss("a request can't come in live")
