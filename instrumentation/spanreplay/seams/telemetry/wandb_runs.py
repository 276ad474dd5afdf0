"""Seam: runs of Weights & Biases. A replay's run says what the recorded one said, and sends nothing.

`wandb.init`, `login` and `setup` start a program, which sends or writes what the agent logs. A replay starts no
programs and sends no reports, so it gives the agent a run in wandb's own mode `disabled`, and the recorded result of a
login.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source
from spanreplay.runtime.run import active_run

_ASKED: Final = ("id", "name", "project", "entity")
"""Attributes of a run, and the arguments of `wandb.init` that set them."""
_TOLD: Final = ("entity", "url", "offline")
"""Attributes that a program only reads; a disabled run has others."""
_READ: Final = source("environment", "wandb.init", is_loose=True)
_LOGGED_IN: Final = source("environment", "wandb.login", is_loose=True)


def install(module: Any, patches: Patches) -> None:
    """Patch `wandb.sdk.wandb_init`, `wandb.sdk.wandb_login` or `wandb.sdk.wandb_setup`."""
    name = module.__name__.rpartition("_")[2]
    patches.wrap(module, name, {"init": _init, "login": _login, "setup": _setup}[name])


def _setup(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not run.resolver.swallows_telemetry:
        return wrapped(*args, **kwargs)
    asked = inspect.signature(wrapped).bind_partial(*args, **kwargs)
    settings = asked.arguments.get("settings") or import_module("wandb.sdk.wandb_settings").Settings()
    asked.arguments["settings"] = settings.model_copy(update={"mode": "disabled"})
    return wrapped(*asked.args, **asked.kwargs)


def _login(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    if run.resolver.swallows_telemetry:
        return read(_LOGGED_IN, bool)
    done = wrapped(*args, **kwargs)
    guard.guarded("a login of wandb", read, _LOGGED_IN, lambda: done)
    return done


def _init(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    if not run.resolver.swallows_telemetry:
        made = wrapped(*args, **kwargs)
        guard.guarded("a run of wandb", read, _READ, lambda: _describe(made))
        return made
    recorded = read(_READ, dict)
    asked = inspect.signature(wrapped).bind_partial(*args, **kwargs)
    asked.arguments |= {"mode": "disabled", **{name: recorded[name] for name in _ASKED if recorded.get(name)}}
    made = wrapped(*asked.args, **asked.kwargs)
    if recorded:
        _resemble(made, recorded)
    return made


def _describe(made: Any) -> dict[str, Any]:
    is_offline = bool(getattr(made, "offline", False))  # wandb warns where an offline run is asked for its URL
    names = [name for name in (*_ASKED, *_TOLD) if not (is_offline and name == "url")]
    return {name: getattr(made, name, None) for name in names}


def _resemble(made: Any, recorded: dict[str, Any]) -> None:
    if made.name != recorded["name"]:
        made.name = recorded["name"]  # a disabled run has one always, one that is offline has not
    told = {name: recorded[name] for name in _TOLD if name in recorded and getattr(made, name) != recorded[name]}
    if told:
        kind = type(made)
        members: dict[str, Any] = {name: _always(value) for name, value in told.items()}
        made.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **members})


def _always(value: Any) -> property:
    return property(lambda run: value)
