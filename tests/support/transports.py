"""Small helpers of the tests of transport seams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spanreplay.model.call import CallRecord
from spanreplay.model.errors import RunNotFound
from spanreplay.runtime.patches import Patches
from support.in_process import Seams, recorded


def recorded_calls(function: Callable[[], Any], seams: Seams) -> tuple[CallRecord, ...]:
    """Return the calls that a function makes; empty if it makes none."""
    try:
        return recorded(function, seams).calls
    except RunNotFound:
        return ()


def assert_patches(seams: Seams, *targets: tuple[Any, str]) -> None:
    """Assert that every target exists, is patched by the seams, and is afterwards the identical object again."""
    before = [vars(owner)[name] for owner, name in targets]
    patches = Patches()
    for install, module in seams:
        install(module, patches)
    assert all(vars(o)[n] is not original for (o, n), original in zip(targets, before, strict=True))
    patches.undo()
    assert all(vars(o)[n] is original for (o, n), original in zip(targets, before, strict=True))
