"""Seam: signals for which the agent waits (`signal.sigwait`, `sigwaitinfo`, `sigtimedwait`).

Signals that reach a handler are in the order of the run (`runtime/order/received_signals.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches

_FIELDS: Final = ("si_signo", "si_code", "si_errno", "si_pid", "si_uid", "si_status", "si_band")
_WAITS: Final = ("sigwait", "sigwaitinfo", "sigtimedwait")


def _to_plain(found: Any) -> Any:
    if found is None or isinstance(found, int):
        return None if found is None else int(found)
    return [int(getattr(found, name)) for name in _FIELDS]


def _from_plain(found: Any) -> Any:
    if isinstance(found, int):
        return _to_signal(found)
    return None if found is None else signal.struct_siginfo(found)


def _to_signal(number: int) -> int:
    try:
        return signal.Signals(number)
    except ValueError:  # a real-time signal
        return number


def install(module: Any, patches: Patches) -> None:
    """Patch the waits that the system has."""
    for name in _WAITS:
        if hasattr(signal, name):
            patches.wrap(signal, name, _make_wait(name))


def _make_wait(name: str) -> Callable[..., Any]:
    def wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if recorded_run() is None or not args:
            return wrapped(*args, **kwargs)
        signals = args[0] if isinstance(args[0], (set, frozenset)) else list(args[0])
        arguments = {"signals": sorted(int(each) for each in signals), **({"timeout": args[1]} if args[1:] else {})}
        call = FunctionCall(Kind.COMPUTE.value, f"signal.{name}", Effect.READ.value, arguments, prints=False)
        return _from_plain(call_sync(lambda: call, lambda: _to_plain(wrapped(signals, *args[1:]))))

    return wait
