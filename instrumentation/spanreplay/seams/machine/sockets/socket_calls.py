"""What calls on sockets have in common, with and without a connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, finish_sync
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.patches import Patches

__all__ = ["WAITING", "copy_bytes", "describe", "finish_waiting", "replace", "show", "wait_for_end"]

WAITING: Final = '{"waiting":true}'
"""The response of a call that was still waiting for data when its run ended."""
_WAIT_S: Final = 1.0


def describe(name: str, arguments: Mapping[str, Any], effect: Effect = Effect.WRITE) -> FunctionCall:
    """Describe one use of a socket as a call."""
    return FunctionCall(Kind.TOOL.value, f"socket.{name}", effect.value, arguments, prints=False)


def wait_for_end(crossing: Crossing) -> None:
    """Wait until the run is over, as the recorded call did. Raises: ReplayMiss."""
    run, over = crossing.run, threading.Event()
    run.resolver.on_stop(over.set)
    while not run.is_ended and not over.wait(_WAIT_S):
        pass
    raise ReplayMiss("the run ended while this waited for data")


def finish_waiting(crossing: Crossing, real: Callable[[], Any]) -> Any:
    """Run or serve a call that may still wait when its run ends; it then waits until the end in a replay, too."""
    if crossing.served is not None and crossing.served.response == WAITING:
        wait_for_end(crossing)
    crossing.on_abandon = lambda: crossing.close(Outcome.CANCELLED, WAITING)
    return finish_sync(crossing, real)


def copy_bytes(data: Any) -> bytes | None:
    """Return the bytes of a bytes-like object; None for anything else, which the real function refuses."""
    try:
        return memoryview(data).tobytes()
    except TypeError:
        return None


def show(address: Any) -> str:
    """Return `host:port` or a path."""
    return (
        f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) > 1 else str(address or "anybody")
    )


def replace(patches: Patches, cls: Any, function: Any) -> None:
    """Put a function in the place of the method of the same name."""
    name = function.__name__
    function.__qualname__, function.__doc__ = f"{cls.__name__}.{name}", getattr(cls, name).__doc__
    function.__module__ = cls.__module__
    patches.replace(cls, name, function)
