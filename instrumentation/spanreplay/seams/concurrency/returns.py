"""Notes when an answer is back in the agent's code, if several threads ask.

After a response, which ends the call, an SDK computes for some milliseconds before it returns, and we write the call's
record. Two threads whose answers come within that time may go on in the other order. Each return takes a value of the
run's Lamport clock, as waits of threads do (`thread_waits.py`), and a replay returns in that order. One row of RETURNS
is a method; a Python call that is a boundary notes its return itself (`function_calls.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from spanreplay.runtime.calls.returning import note_return
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run


class Returning(NamedTuple):
    """Methods of a class with which agents request something that takes time."""

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


def _ask(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not run.lock_order.is_shared:
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
