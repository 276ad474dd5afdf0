"""One audit hook for the process, and the listeners of each event.

Hooks can't be removed, and each slows down every audited event of the interpreter: there is only one, installed when
somebody first listens, and an event without listeners costs it one lookup. It is not installed in an ordinary
recording, because `sys._getframe` and `id` are audited too (docs/decisions/0007).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from spanreplay.model.own_threads import make_lock

Listener = Callable[[str, tuple[Any, ...]], None]
"""Gets the event's name and arguments; an exception that it raises is raised where the event happens."""

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
    """Stop calling `listener`."""
    with _changing:
        for event, listeners in tuple(_listeners.items()):
            left = tuple(each for each in listeners if each != listener)
            if left:
                _listeners[event] = left
            else:
                del _listeners[event]
