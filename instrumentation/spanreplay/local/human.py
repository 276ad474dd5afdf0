"""Seam: `input()` and `getpass.getpass()`, as the agent's code asks a human."""

from __future__ import annotations

import builtins
import sys
from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_sync
from spanreplay.local.patching import Patch, asks, install_patch, recorded_run
from spanreplay.run import Run

_getframe: Final = sys._getframe


def _is_console() -> bool:
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def _echo(prompt: object) -> None:
    if sys.stdout is not None:
        sys.stdout.write(str(prompt))
        sys.stdout.flush()


def _ask(run: Run, real: Any, prompt: object) -> str:
    is_live = False

    def live() -> Any:
        nonlocal is_live
        is_live = True
        if run.output is not None and _is_console():
            sys.stdout.flush()
            run.output.note(str(prompt))  # on a console the prompt goes past sys.stdout
        return real(prompt)

    def describe() -> Leaf:
        return Leaf(Kind.HUMAN.value, "input", Effect.READ.value, {"prompt": str(prompt)})

    try:
        answer: str = call_sync(describe, live)
    except Exception:
        if not is_live:
            _echo(prompt)
        raise
    if not is_live:
        _echo(prompt)
    return answer


def _patch_input(patches: Patches) -> None:
    real = builtins.input

    def call(patch: Patch, prompt: object = "", /) -> str:
        run = recorded_run() if asks(_getframe(1)) else None
        return real(prompt) if run is None else _ask(run, real, prompt)

    install_patch(patches, builtins, "input", call, Patch("builtins", "input", real))


def _patch_getpass(patches: Patches, module: Any) -> None:
    real = module.getpass

    def call(patch: Patch, prompt: str = "Password: ", stream: Any = None, **kwargs: Any) -> str:
        if not asks(_getframe(1)) or recorded_run() is None:
            return str(real(prompt, stream, **kwargs))

        def describe() -> Leaf:
            return Leaf(Kind.HUMAN.value, "getpass", Effect.READ.value, {"prompt": prompt})

        # Under this name the redactor takes the whole value for a secret
        answer = call_sync(describe, lambda: {"password": real(prompt, stream, **kwargs)})
        return str(answer["password"])

    install_patch(patches, module, "getpass", call, Patch("getpass", "getpass", real))


def install(module: Any, patches: Patches) -> None:
    """Patch `builtins` or `getpass`."""
    if module is builtins:
        _patch_input(patches)
    else:
        _patch_getpass(patches, module)
