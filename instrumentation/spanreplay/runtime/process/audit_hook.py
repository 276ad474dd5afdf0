"""One audit hook for the process, and who listens to which event.

Hooks can't be removed, and each costs every audited event of the interpreter: there is one, made when somebody first
listens, and it looks one name up for an event that nobody waits for. It stays out of an ordinary recording, because
`sys._getframe` and `id` are audited too (docs/decisions/0007).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from spanreplay.model.own_threads import make_lock

Listener = Callable[[str, tuple[Any, ...]], None]
"""Gets the event's name and arguments; what it raises is raised where the event happens."""

_listeners: dict[str, tuple[Listener, ...]] = {}
_changing: Final = make_lock()
_is_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    listeners = _listeners.get(event)
    if listeners is not None:
        for listener in listeners:
            listener(event, args)


def listen(events: Iterable[str], listener: Listener) -> None:
    """Call `listener` at each of these events from now on, in every thread."""
    global _is_hooked
    with _changing:
        for event in events:
            _listeners[event] = (*_listeners.get(event, ()), listener)
        is_first, _is_hooked = not _is_hooked, True
    if is_first:
        sys.addaudithook(_hook)


def ignore(listener: Listener) -> None:
    """Call `listener` no more."""
    with _changing:
        for event, listeners in tuple(_listeners.items()):
            left = tuple(each for each in listeners if each != listener)
            if left:
                _listeners[event] = left
            else:
                del _listeners[event]
