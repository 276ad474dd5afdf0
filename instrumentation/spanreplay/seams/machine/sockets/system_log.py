"""Seam: `syslog`, whose C code bypasses Python's sockets: a log message is an effect, and a replay sends none."""

from __future__ import annotations

from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import patch_with
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.effects import describe_effect, effects_run

_FUNCTIONS: Final = ("syslog", "openlog", "closelog", "setlogmask")


def _patch(patches: Patches, module: Any, name: str) -> None:
    real = getattr(module, name)

    def ask(*args: Any, **kwargs: Any) -> Any:
        if effects_run() is None:
            return real(*args, **kwargs)
        shown = {**{str(at): each for at, each in enumerate(args)}, **kwargs}
        function_call = describe_effect(f"syslog.{name}", shown, Effect.WRITE)
        return call_sync(lambda: function_call, lambda: real(*args, **kwargs))

    patch_with(patches, module, name, ask)


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of `syslog`."""
    for name in _FUNCTIONS:
        _patch(patches, module, name)
