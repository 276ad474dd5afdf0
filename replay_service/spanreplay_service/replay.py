"""The gRPC service `Replay`: streams a recorded run and receives the verdict of a replay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol

from spanreplay.model.call import RootRecord
from spanreplay.model.errors import ConfigError
from spanreplay.recording.remote import wire
from spanreplay.v1 import replay_pb2 as pb
from spanreplay.v1 import replay_pb2_grpc
from spanreplay_service.guard import current_tenant
from spanreplay_service.runs import RunAccess, normalize_run_id

VERDICTS: Final = ("identical", "diverged", "incomplete", "tampered", "over_budget")


class VerdictSink(Protocol):
    """A destination that shows verdicts; its method blocks and is called from a thread."""

    def report(self, *, root: RootRecord, replay_run_id: str, verdict: str, report: dict[str, Any]) -> str:
        """Show a verdict on the run of a root span; return the URL where it can be seen."""
        ...

    def forget(self, trace_ids: Sequence[str]) -> bool:
        """Remove these traces; return whether none is shown any more."""
        ...


class ReplayServicer(replay_pb2_grpc.ReplayServicer):
    """ReplayRun, ReportReplay."""

    def __init__(self, runs: RunAccess, sink: VerdictSink | None) -> None:
        self._runs = runs
        self._sink = sink

    async def ReplayRun(  # noqa: N802 - gRPC's name
        self, request: pb.ReplayRunRequest, context: Any
    ) -> AsyncIterator[pb.ReplayRunResponse]:
        """Stream the manifest, batches of calls and the end."""
        recording = await self._runs.load(current_tenant(), request.run_id)
        events = wire.iter_replay_events(recording)
        # Batches are built one at a time in a thread: a long run neither blocks the loop nor is in memory twice.
        while (event := await self._runs.in_thread(next, events, None)) is not None:
            yield event

    async def ReportReplay(  # noqa: N802 - gRPC's name
        self, request: pb.ReportReplayRequest, context: Any
    ) -> pb.ReportReplayResponse:
        """Show the verdict if there is a sink; nothing is stored."""
        if request.verdict not in VERDICTS:
            raise ConfigError(f"not a verdict: {request.verdict[:40]!r}; expected one of {', '.join(VERDICTS)}")
        report = _parse_report(request.report)
        replay_run_id = normalize_run_id(request.replay_run_id) if request.replay_run_id else ""
        # Only a tenant that may read the run may report on it: otherwise this raises RunNotFound.
        root = await self._runs.find_root(current_tenant(), request.run_id)
        if self._sink is None:
            return pb.ReportReplayResponse()
        sink = self._sink
        url = await self._runs.in_thread(
            lambda: sink.report(root=root, replay_run_id=replay_run_id, verdict=request.verdict, report=report)
        )
        return pb.ReportReplayResponse(phoenix_url=url)


def _parse_report(text: str) -> dict[str, Any]:
    try:
        report = json.loads(text or "{}")
    except (ValueError, RecursionError) as exc:
        raise ConfigError("the report is not JSON") from exc
    if not isinstance(report, dict):
        raise ConfigError("the report is not a JSON object")
    return report
