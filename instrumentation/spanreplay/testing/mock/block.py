"""The block in which models are mocked: installs the transports' seams and a session that answers; no network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay import codec
from spanreplay.activate import blocks
from spanreplay.model.call import Kind, Outcome, Recording, RootRecord
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.json_text import dump
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.testing.mock.answers import Failure
from spanreplay.testing.mock.plain import build_redactor
from spanreplay.testing.mock.wires import Wire, find_wire

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.seams.table import Seam
    from spanreplay.testing.mock.answers import Answer

Asked = Callable[[str, dict[str, Any]], "Answer | Failure"]
"""Boundary and request of a call → the model's answer."""

_TRANSPORTS: Final = frozenset({"httpx", "httpx2", "requests", "aiohttp", "urllib3", "botocore", "urllib"})
_MOCKED: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value, Kind.HTTP.value})
# Keeps the SDK from retrying by itself: the test is about the application
_ERROR_HEADERS: Final = [["content-type", "application/json"], ["x-should-retry", "false"]]


class MockBlock(blocks._Block):
    """A block of code in which `asked` answers model calls."""

    def __init__(self, asked: Asked, plan: Plan, provider: str) -> None:
        super().__init__()
        self._asked = asked
        self._plan = plan
        self._provider = provider

    def __enter__(self) -> MockBlock:
        blocks._claim(self)
        try:
            self._session = _MockSession(self._asked, self._plan, self._provider)
            resource = blocks._resource({})
            self._install(blocks._build_run("mock", "", [], resource, build_redactor(), self._session))
        except BaseException:
            self._uninstall()
            blocks._release()
            raise
        return self

    def _install(self, run: Any) -> None:
        from spanreplay.replayer.sandbox import netguard
        from spanreplay.runtime.run import set_process_run
        from spanreplay.seams.installed import InstalledSeams

        self._run = run
        self._seams = InstalledSeams(self._seam_failed, _TRANSPORTS)
        self._seams.register()
        if self._session is not None:
            netguard.install(self._session, run, netguard.OwnEndpoint())
        set_process_run(run)

    def _seam_failed(self, seam: Seam, exc: Exception) -> None:
        if self._session is not None:
            raise self._session.broken(f"{seam.name} can't be mocked: {type(exc).__name__}: {exc}") from exc

    def __exit__(self, *exc_info: object) -> None:
        self._uninstall()
        blocks._release()


class _MockSession(Session):
    """Answers model calls, lets tools run, denies other requests."""

    def __init__(self, asked: Asked, plan: Plan, provider: str) -> None:
        super().__init__(Recording(RootRecord(run_id="0" * 32, app="mock", manifest={"calls": 0}), ()), plan)
        self._asked = asked
        self._provider = provider

    def resolve(self, crossing: Crossing) -> None:
        """Answer a model call; let other boundaries run. Raises: ReplayMiss for other HTTP requests."""
        kind = crossing.spec.kind
        if kind not in _MOCKED:
            return
        if self.plan.is_live(crossing.boundary):
            crossing.is_live_by_plan = True
            return
        wire = find_wire(crossing.spec.name)
        if wire is None or self._provider not in ("", wire.sdk):
            what = f"the {self._provider} mock" if self._provider else "the mock"
            raise ReplayMiss(
                f"{what} has no answer for {crossing.boundary} ({crossing.code}): it mocks model calls; "
                f"let this one through with .allow({crossing.boundary!r})"
            )
        self._answer(crossing, wire)

    def _answer(self, crossing: Crossing, wire: Wire) -> None:
        body = json.loads(crossing.spec.request).get("body") or {}
        model = str(crossing.spec.meta.get("model", ""))
        answer = self._asked(crossing.boundary, {"model": model, **wire.asked(body)})
        outcome = Outcome.OK
        if not isinstance(answer, Failure):
            body = {"model": model, **body}
            response = _reply(
                wire, answer, body, f"mock{crossing.seq}", is_stream=bool(crossing.spec.meta.get("stream"))
            )
        elif answer.status:
            response = _response(answer.status, _ERROR_HEADERS, [dump(wire.error(answer))])
        else:
            outcome = Outcome.ERROR
            response = dump({"error": _timeout(wire, answer)})
        crossing.served = crossing.to_record(outcome, response)
        self.counts["served"] += 1

    def settle_live(self, *args: Any) -> None:
        """No-op: nothing is compared."""


def _reply(wire: Wire, answer: Answer, body: dict[str, Any], call_id: str, *, is_stream: bool) -> str:
    if is_stream:
        return _response(200, [["content-type", "text/event-stream"]], wire.stream(answer, body, call_id))
    return _response(200, [["content-type", "application/json"]], [dump(wire.whole(answer, body, call_id))])


def _response(status: int, headers: Sequence[Sequence[str]], chunks: Iterable[str]) -> str:
    parts = [[0, chunk] for chunk in chunks]
    return dump({"status": status, "headers": headers, "url": "", "chunks": parts, "end": "complete"})


def _timeout(wire: Wire, failure: Failure) -> dict[str, Any]:
    """The exception that the SDK's transport raises on a timeout."""
    # OpenAI's and Anthropic's SDKs re-export a class of their transport: httpx in old versions, httpx2 in new ones
    timeout = getattr(sys.modules.get(wire.sdk), "Timeout", None)
    name = getattr(getattr(timeout, "__init__", None), "__module__", "httpx").partition(".")[0]
    exc: Exception = getattr(sys.modules.get(name), "ReadTimeout", TimeoutError)(failure.message)
    return {"type": type(exc).__name__, "message": failure.message, "value": codec.encode_exception(exc), "at": ""}
