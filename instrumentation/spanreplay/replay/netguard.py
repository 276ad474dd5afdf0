"""Denies network connections while a replay runs.

An audit hook sees every connection of the interpreter, whatever library makes it. Allowed are connections made
inside a call that the plan runs live, and the endpoints that are ours (the collector). Hooks can't be removed;
this one does nothing once the replay has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from spanreplay.lanes import current_crossing
from spanreplay.replay.session import Session
from spanreplay.run import Run

_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


def install(session: Session, run: Run, is_ours: Callable[[str, int], bool]) -> None:
    """Deny from now on; a denied connection is noted and raises ReplayMiss in the caller."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS or run.is_ended:
            return
        address = args[1] if len(args) > 1 else None
        if address is None or _is_live(run):
            return
        host, port = _split(address)
        if is_ours(host, port):
            return
        raise session.deny_socket(f"{host}:{port}" if port else host)

    sys.addaudithook(hook)


def _is_live(run: Run) -> bool:
    crossing = current_crossing(run.root_lane)
    while crossing is not None:
        if crossing.is_live_by_plan:
            return True
        crossing = crossing.parent
    return False


def _split(address: Any) -> tuple[str, int]:
    if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[1], int):
        return str(address[0]), address[1]
    if isinstance(address, bytes):
        return address.decode("utf-8", "replace"), 0
    return str(address), 0
