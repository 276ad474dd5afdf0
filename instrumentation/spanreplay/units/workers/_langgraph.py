"""Unit: LangGraph's server (`langgraph dev`), whose queue executes graph runs separately from their requests.

A graph run that its request waits for (`/runs/wait`, `/runs/stream`) is part of that request. Any other is a unit: its
input is the queue's job together with the state of its thread in the server's memory. A request for a thread records
that state as a call:

    compute:langgraph.thread (read)   the thread's row, its newest checkpoints; a replay restores them
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spanreplay import codec
from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss, Unserializable
from spanreplay.model.lane_names import is_within
from spanreplay.runtime.caller.running import entered
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units.jobs import (
    Ended,
    describe_exception,
    is_replay,
    play_job_async,
    record_job_async,
)
from spanreplay.units.play import plays_jobs
from spanreplay.units.unit_run import UnitRun

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_PART: Final = "LangGraph's server"
_DATABASE: Final = "langgraph_runtime_inmem.database"
"""The module of a server that keeps everything in memory."""
_LABEL: Final = "graph run"
_ASKED_MAX: Final = 1_000
_CHECKPOINTS_MAX: Final = 8
"""How many checkpoints of a thread are recorded per namespace; a graph run continues from the newest."""
_RETURNED: Final = frozenset({"values", "interrupts"})
_OUTCOMES: Final = {
    "error": Outcome.ERROR,
    "timeout": Outcome.ERROR,
    "retry": Outcome.ERROR,
    "interrupted": Outcome.CANCELLED,
    "rollback": Outcome.CANCELLED,
}


class _Asking(NamedTuple):
    """The request that waits for a graph run, and the graph run's lane in it."""

    run: Run
    lane: Lane


_asked: dict[str, _Asking | None] = {}
"""Id of a graph run that has not begun → the request that waits for it; None: no request."""

_given: list[str] = []
"""In a replay, the id of the graph run given to the worker."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of the server's modules."""
    if module.__name__ == "langgraph_api.worker":
        patches.wrap(module, "worker", _work)
        plays_jobs(_play)
    elif module.__name__ == "langgraph_api.route":
        patches.wrap(module.ApiRoute, "handle", _handle)
    else:
        patches.wrap(module.Runs, "put", _put)
        patches.wrap(module.Runs.Stream, "subscribe", _subscribe)


# ── requests waiting for a graph run ────────────────────────────────────────────────────────────────
def _subscribe(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Note which request waits for a graph run: it subscribes to the results before it queues the run."""
    guard.guarded(_PART, lambda: _note(args[0] if args else kwargs.get("run_id"), _find_asking()))
    return wrapped(*args, **kwargs)


def _put(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    guard.guarded(_PART, _note, kwargs.get("run_id"), None)
    return wrapped(*args, **kwargs)


def _find_asking() -> _Asking | None:
    run = active_run()
    return _Asking(run, current_lane(run.root_lane).child(_LABEL)) if run is not None and _is_unit(run) else None


def _is_unit(run: Run) -> bool:
    """Whether the current code belongs to a unit, recorded or replayed."""
    if run.resolver.keeps:
        return isinstance(run, UnitRun)
    extent = run.resolver.answers.extent
    return extent is not None and is_within(current_lane(run.root_lane).path, extent.lane)


def _note(run_id: Any, asking: _Asking | None) -> None:
    if run_id is None or str(run_id) in _asked:
        return
    for known in [known for known, asked in _asked.items() if asked is not None and asked.run.is_ended]:
        _asked[known] = None  # a request may subscribe to a graph run that is over, or that never begins
    if len(_asked) >= _ASKED_MAX:
        _asked.pop(next(iter(_asked)))
    _asked[str(run_id)] = asking


# ── requests for a thread ───────────────────────────────────────────────────────────────────────────
def _handle(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Record the thread's state in the server's memory before a request, and restore it in a replay."""
    run = active_run()
    if run is not None and _is_unit(run) and _DATABASE in sys.modules:
        if run.resolver.keeps:
            guard.guarded(_PART, lambda: _note_thread(args[0]["path_params"]))
        elif "thread_id" in args[0]["path_params"]:
            _Memory().restore(call_sync(lambda: _describe_thread(args[0]["path_params"]), _no_memory))
    return wrapped(*args, **kwargs)


def _note_thread(path: Mapping[str, Any]) -> None:
    if "thread_id" in path:
        call_sync(lambda: _describe_thread(path), lambda: _Memory().describe(**path))


def _describe_thread(path: Mapping[str, Any]) -> FunctionCall:
    told = {"thread_id": str(path["thread_id"])}
    return FunctionCall(Kind.COMPUTE.value, "langgraph.thread", Effect.READ.value, told, prints=False)


def _no_memory() -> Any:
    raise ReplayMiss("what another process remembers can't be had live")


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _work(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Execute a graph run: as part of the request that waits for it, or as a unit."""
    job = args[0] if args else kwargs["run"]
    asking = _asked.get(str(job["run_id"]))
    if asking is not None and not asking.run.is_ended:
        with entered(asking.run), inside_lane(asking.lane):
            result = await wrapped(*args, **kwargs)  # after an exception it is called again
        _asked.pop(str(job["run_id"]), None)
        return result
    _asked.pop(str(job["run_id"]), None)
    if is_replay():
        if _is_given(job):
            return await wrapped(*args, **kwargs)
        job["status"] = "success"  # another unit's job: units that read its results have them in their recordings
        return None
    attempt = args[1] if len(args) > 1 else kwargs["attempt"]
    graph = str(guard.guarded(_PART, _find_graph, job) or "")
    return await record_job_async(
        graph, lambda: _describe_input(job, attempt), lambda: wrapped(*args, **kwargs), _describe_end
    )


def _find_graph(job: Mapping[str, Any]) -> Any:
    return job["kwargs"].get("config", {}).get("configurable", {}).get("graph_id")


def _describe_input(job: Mapping[str, Any], attempt: int) -> dict[str, Any]:
    if _DATABASE not in sys.modules:
        return {"attempt": attempt, "runs": [_plain(job)]}
    memory = _Memory().describe(job["thread_id"])
    if memory["thread"] is not None:  # a graph's results may be of any class, and no worker reads them from here
        memory["thread"] |= dict.fromkeys(_RETURNED & memory["thread"].keys())
    return {"attempt": attempt, **memory, "runs": [_plain(job)]}


def _plain(value: Any) -> Any:
    """Return a value that can be recorded; others (a request's user) in the form the server stores in a database."""
    try:
        codec.encode(value)
    except Unserializable:
        from langgraph_api.serde import json_dumpb

        is_mapping = isinstance(value, Mapping)
        return {name: _plain(each) for name, each in value.items()} if is_mapping else json.loads(json_dumpb(value))
    return value


def _describe_end(result: Mapping[str, Any]) -> Ended:
    from langgraph_api.serde import json_dumpb

    status, raised = str(result["status"]), result["exception"]
    output = {"status": status, "checkpoint": json.loads(json_dumpb(result["checkpoint"]))}
    if raised is not None:
        output["raised"] = describe_exception(raised)
    return Ended(output, _OUTCOMES.get(status, Outcome.OK))


# ── the server's memory ─────────────────────────────────────────────────────────────────────────────
class _Memory:
    """The in-memory server's state of one thread: its row, its checkpoints, the writes of its nodes."""

    def __init__(self) -> None:
        from langgraph_runtime_inmem.checkpoint import Checkpointer
        from langgraph_runtime_inmem.database import GLOBAL_STORE

        self._saver, self._store = Checkpointer(), GLOBAL_STORE

    def describe(self, thread_id: Any, run_id: Any = None, **others: Any) -> dict[str, Any]:
        """Return the state as values that can be recorded; `run_id`: a graph run in the thread that is requested."""
        key = str(thread_id)
        storage = {ns: _newest(saved) for ns, saved in dict(self._saver.storage).get(key, {}).items()}
        names = {(ns, *at) for ns, saved in storage.items() for each in saved.values() for at in self._versions(each)}
        kept = {(ns, checkpoint_id) for ns, saved in storage.items() for checkpoint_id in saved}
        return {
            "thread_id": key,
            "thread": self._find("threads", thread_id=key),
            "runs": [] if run_id is None else [self._find("runs", run_id=str(run_id))],
            "storage": storage,
            "writes": [[*at, [*done.items()]] for at, done in self._of(key, self._saver.writes) if at[1:] in kept],
            "blobs": [[*at, value] for at, value in self._of(key, self._saver.blobs) if at[1:] in names],
        }

    def restore(self, given: Mapping[str, Any]) -> None:
        """Restore a described state."""
        for table, name, rows in (("threads", "thread_id", [given["thread"]]), ("runs", "run_id", given["runs"])):
            for row in rows:
                if row is not None:
                    self._store[table][:] = [each for each in self._store[table] if each[name] != row[name]]
                    self._store[table].append(row)
        for namespace, saved in given["storage"].items():
            self._saver.storage[given["thread_id"]][namespace].update(saved)
        for *at, done in given["writes"]:
            self._saver.writes[tuple(at)].update({tuple(name): value for name, value in done})
        for *at, value in given["blobs"]:
            self._saver.blobs[tuple(at)] = value

    def _find(self, table: str, **wanted: str) -> dict[str, Any] | None:
        rows = (each for each in self._store[table] if all(str(each[name]) == wanted[name] for name in wanted))
        found = next(rows, None)
        return None if found is None else {**_plain(found)}

    def _versions(self, saved: Any) -> Iterable[tuple[str, Any]]:
        """Return the channels of a checkpoint with their versions."""
        versions: Mapping[str, Any] = self._saver.serde.loads_typed(saved[0])["channel_versions"]
        return versions.items()

    def _of(self, thread_id: str, table: Mapping[tuple[Any, ...], Any]) -> list[tuple[tuple[Any, ...], Any]]:
        return [(at, value) for at, value in list(table.items()) if at[0] == thread_id]


def _newest(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {name: saved[name] for name in sorted(saved)[-_CHECKPOINTS_MAX:]}


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────
async def _play(lane: str) -> None:
    """Pass the recorded graph run to the worker of a started server."""
    await play_job_async(lane, _execute, _describe_end)


async def _execute(given: Mapping[str, Any]) -> Any:
    from langgraph_api import worker

    if "thread_id" in given:
        _Memory().restore(given)
    (job,) = given["runs"]
    _given[:] = [str(job["run_id"])]
    return await worker.worker(job, given["attempt"], asyncio.get_running_loop())


def _is_given(job: Mapping[str, Any]) -> bool:
    """Whether this graph run is the replayed unit."""
    return str(job["run_id"]) in _given
