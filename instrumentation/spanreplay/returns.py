"""When an answer is back in the agent's code, where several threads ask.

An SDK computes for some milliseconds between the end of a response, which is the call's end, and its return; and we
write the record of a call. Two threads whose answers come within that may go on in the other order. Each return takes a
value of the run's logical clock, as waits of threads do (`waits.py`), and a replay returns in that order. One row of
RETURNS a method; a Python call that is a boundary notes its return itself (`leaf.py`).
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

from spanreplay import guard
from spanreplay._patch import Patches
from spanreplay.crossing import is_plumbing
from spanreplay.lanes import Lane, current_crossing, current_lane, has_lane
from spanreplay.loops import running_loop
from spanreplay.run import Run, active_run

RETURNED: Final = "|returned|"
"""Stands in a name between a lane and the number of a return; they are noted while there are several threads."""


class Returning(NamedTuple):
    """Methods of a class by which agents ask for something that takes time."""

    module: str
    owner: str
    names: tuple[str, ...]


RETURNS: Final = (
    Returning("openai.resources.chat.completions", "Completions", ("create", "parse")),
    Returning("openai.resources.completions", "Completions", ("create",)),
    Returning("openai.resources.embeddings", "Embeddings", ("create",)),
    Returning("openai.resources.responses", "Responses", ("create", "parse")),
    Returning("anthropic.resources.messages", "Messages", ("create", "parse")),
    Returning("groq.resources.chat.completions", "Completions", ("create",)),
    Returning("google.genai.models", "Models", ("generate_content", "embed_content")),
    Returning("botocore.client", "BaseClient", ("_make_api_call",)),
    Returning("httpx", "Client", ("request",)),
    Returning("httpx2", "Client", ("request",)),
    Returning("requests.sessions", "Session", ("request",)),
    Returning("langchain_core.language_models.chat_models", "BaseChatModel", ("invoke",)),
    Returning("langchain_core.runnables.base", "RunnableSequence", ("invoke",)),
    Returning("anyio.from_thread", "BlockingPortal", ("call",)),
    Returning("asgiref.sync", "AsyncToSync", ("__call__",)),
)


def _lane_here(run: Run) -> Lane | None:
    """The lane of a thread in which no event loop runs; None inside of a call and in our own plumbing."""
    is_known = has_lane() or threading.current_thread() is threading.main_thread()
    if not is_known or current_crossing(run.root_lane) is not None or is_plumbing(run) or running_loop() is not None:
        return None
    return current_lane(run.root_lane)


def note_return(run: Run) -> None:
    """The calling thread goes on with an answer, in a replay when it is its turn; for runs of several threads."""
    lane = None if run.is_ended else guard.guarded("naming a return", _lane_here, run)
    if lane is None:
        return
    name = f"{lane.path}{RETURNED}{lane.next_index('returned')}"
    if run.session is None:
        guard.guarded("noting a return", run.end_timer, name, True)
        return
    gate = run.session.gate
    clock = -1 if gate.is_open else (gate.timers or {}).get(name, -1)
    if clock >= 0:
        gate.wait_turn(clock)
        gate.complete(clock)


def _ask(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not run.handovers.is_shared:
        return wrapped(*args, **kwargs)
    try:
        return wrapped(*args, **kwargs)
    finally:
        note_return(run)


def install(module: Any, patches: Patches) -> None:
    """Wrap the methods of one module."""
    for row in RETURNS:
        owner = getattr(module, row.owner, None)
        if row.module == module.__name__ and owner is not None:
            for name in row.names:
                if hasattr(owner, name):
                    patches.wrap(owner, name, _ask)
