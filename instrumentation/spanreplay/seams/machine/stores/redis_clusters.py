"""Clients of a Redis cluster: commands and pipelines as calls, whichever node answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.stores.redis_calls import CLIENTS, describe_pipeline

_QUEUED: Final = "_spanreplay_queued"
"""Attribute of a pipeline: the commands that it has been given and not sent."""
_IS_TRANSACTION: Final = "_spanreplay_transaction"


def make_pipeline(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Make a pipeline that knows whether it is a transaction."""
    pipeline = wrapped(*args, **kwargs)
    setattr(pipeline, _QUEUED, [])
    setattr(pipeline, _IS_TRANSACTION, bool(args[0] if args else kwargs.get("transaction")))
    return pipeline


def queue(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    """Give a pipeline a command; one that is sent at once takes its connection from a pool."""
    result = wrapped(*args, **kwargs)
    if result is pipeline and hasattr(pipeline, _QUEUED):
        getattr(pipeline, _QUEUED).append((args, kwargs))
    return result


def reset(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    """Forget the commands that a pipeline was given."""
    setattr(pipeline, _QUEUED, [])
    return wrapped(*args, **kwargs)


def _describe(pipeline: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    stack = list(getattr(pipeline, _QUEUED, ()))
    raises = bool(args[0] if args else kwargs.get("raise_on_error", True))
    is_transaction = getattr(pipeline, _IS_TRANSACTION, False)
    return lambda: describe_pipeline(pipeline, stack, raises=raises, is_transaction=is_transaction)


def _is_recorded(pipeline: Any) -> bool:
    """Whether sending a pipeline's commands is a call here. Raises: ReplayMiss for unknown commands in a replay."""
    run = asking_run(CLIENTS) if len(pipeline) else None
    if run is not None and len(pipeline) != len(getattr(pipeline, _QUEUED, ())):
        run.resolver.leave_out("a pipeline of a Redis cluster was filled in a way that is not recorded")
        return False
    return run is not None


def execute(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    """Send the commands of a pipeline."""
    if not _is_recorded(pipeline):
        return wrapped(*args, **kwargs)
    try:
        return call_sync(_describe(pipeline, args, kwargs), lambda: wrapped(*args, **kwargs))
    finally:
        setattr(pipeline, _QUEUED, [])
        pipeline.reset()


async def execute_async(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    """As `execute`, on an event loop."""
    if not _is_recorded(pipeline):
        return await wrapped(*args, **kwargs)
    try:
        return await call_async(_describe(pipeline, args, kwargs), lambda: wrapped(*args, **kwargs))
    finally:
        setattr(pipeline, _QUEUED, [])
        await pipeline.__aexit__(None, None, None)  # versions before 7 have no `reset`
