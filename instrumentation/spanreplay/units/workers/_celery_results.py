"""Unit: Celery, on the side that asks: results of tasks, commands to workers.

What a result backend or a broker does for one of these calls is part of it; what they keep for all their callers, such
as a subscription, is their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.units.jobs import keep_encodable

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_CHILDREN: Final = "children"
_TIMEOUT: Final = "timeout"


def install(module: Any, patches: Patches) -> None:
    """Patch one of Celery's modules."""
    if module.__name__ == "celery.result":
        patches.wrap(module.AsyncResult, "get", _get)
        patches.wrap(module.AsyncResult, "wait", _get)
        patches.wrap(module.ResultSet, "join_native", _join)
    elif module.__name__ == "celery.app.control":
        patches.wrap(module.Control, "broadcast", _broadcast)
    elif module.__name__ == "celery.backends.asynchronous":
        patches.wrap(module.AsyncBackendMixin, "add_pending_result", _subscribe)
    elif module.__name__ == "celery.backends.database":
        patches.wrap(module.DatabaseBackend, "_create_tables", _prepare)
    elif module.__name__ == "celery.backends.rpc":
        patches.wrap(module.RPCBackend, "get_task_meta", _read)
    else:
        patches.wrap(module.Backend, "get_task_meta", _read)


def _call(name: str, effect: Effect, told: dict[str, Any], live: Callable[[], Any]) -> Any:
    function_call = FunctionCall(Kind.TOOL.value, name, effect.value, keep_encodable(told), prints=False)
    return call_sync(lambda: function_call, live)


def _get(wrapped: Any, result: Any, args: Any, kwargs: Any) -> Any:
    """Record what a task has become while the caller waited; its result is then the result's own."""
    if recorded_run() is None or result.ignored or result._cache:
        return wrapped(*args, **kwargs)
    ended: list[tuple[bool, Any]] = []

    def wait() -> Any:
        try:
            ended.append((True, wrapped(*args, **kwargs)))
        except Exception as exc:
            if not result._cache:
                raise
            ended.append((False, exc))
        return _describe_meta(result._cache)

    timeout = args[0] if args else kwargs.get(_TIMEOUT)
    meta = _call("celery.get_result", Effect.READ, {"id": result.id, _TIMEOUT: timeout}, wait)
    if not ended:
        result._set_cache(meta)
        if args[1] if len(args) > 1 else kwargs.get("propagate", True):
            result.maybe_throw(callback=kwargs.get("callback"))
        return result.result
    is_value, value = ended[0]
    if is_value:
        return value
    raise value


def _subscribe(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    """Subscribe to a result that nobody waits for yet; a replay subscribes to nothing."""
    made = _prepare(wrapped, backend, args, kwargs)
    return (args[0] if args else kwargs["result"]) if made is None else made


def _prepare(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    """Let a backend prepare something for all its callers; in a replay it does nothing."""
    if recorded_run() is not None and is_replayed_here():
        return None
    with plumbing():
        return wrapped(*args, **kwargs)


def _describe_meta(meta: Any) -> Any:
    """What a backend knows of a task, with its children as it stores them."""
    children = meta.get(_CHILDREN) if isinstance(meta, dict) else None
    return {**meta, _CHILDREN: [each.as_tuple() for each in children]} if children else meta


def _join(wrapped: Any, results: Any, args: Any, kwargs: Any) -> Any:
    if recorded_run() is None:
        return wrapped(*args, **kwargs)
    told = {"ids": [each.id for each in results.results], _TIMEOUT: args[0] if args else kwargs.get(_TIMEOUT)}
    return _call("celery.join_results", Effect.READ, told, lambda: wrapped(*args, **kwargs))


def _read(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    if recorded_run() is None:
        return wrapped(*args, **kwargs)
    task_id = args[0] if args else kwargs["task_id"]
    return _call("celery.read_result", Effect.READ, {"id": task_id}, lambda: wrapped(*args, **kwargs))


def _broadcast(wrapped: Any, control: Any, args: Any, kwargs: Any) -> Any:
    """Record a command to workers as a write: revoking a task, asking which tasks are active."""
    if recorded_run() is None:
        return wrapped(*args, **kwargs)
    names = ("command", "arguments", "destination")
    told = {**dict(zip(names, args, strict=False)), **kwargs}
    told = {name: value for name, value in told.items() if name not in ("connection", "channel", "callback")}
    return _call("celery.control", Effect.WRITE, told, lambda: wrapped(*args, **kwargs))
