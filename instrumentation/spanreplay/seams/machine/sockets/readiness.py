"""Part of the socket seam: `select.select` and `selectors`, which wait until a recorded connection is ready.

What was ready is recorded by its place among what the program waits for, which may include its own pipes and sockets.
An event loop's own selector is left alone: the loop's connections are recorded by their events.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from spanreplay.runtime.agent_patches import Patch, install_patch
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.sockets import streams
from spanreplay.seams.machine.sockets.socket_calls import replace

_getframe: Final = sys._getframe
_LOOPS: Final = f"{os.sep}asyncio{os.sep}"
_CLASSES: Final = ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")
_OTHER: Final = "other"


def _find_stream(waited_for: Iterable[Any]) -> streams.Stream | None:
    """Return the first recorded connection among files, sockets and descriptors."""
    return next((found for each in waited_for if (found := streams.find_any(each)) is not None), None)


def _show(waited_for: Iterable[Any]) -> list[Any]:
    found = (streams.find_any(each) for each in waited_for)
    return [_OTHER if each is None else each.peer for each in found]


def _places(ready: Iterable[Any], waited_for: list[Any]) -> list[int]:
    return [next(n for n, each in enumerate(waited_for) if each is one) for one in ready]


def _patch_select(patches: Patches, module: Any) -> None:
    real = module.select

    def select(patch: Patch, rlist: Any, wlist: Any, xlist: Any, timeout: Any = None, /) -> Any:
        if not streams.has_any():
            return real(rlist, wlist, xlist, timeout)
        lists = [list(rlist), list(wlist), list(xlist)]
        stream = _find_stream(each for one in lists for each in one)
        if stream is None:
            return real(*lists, timeout)

        def live() -> list[list[int]]:
            return [_places(ready, one) for ready, one in zip(real(*lists, timeout), lists, strict=True)]

        shown = {name: _show(one) for name, one in zip(("read", "write", "other"), lists, strict=True) if one}
        places = streams.wait_for(stream, "select", live, shown)
        return tuple([one[n] for n in numbers] for numbers, one in zip(places, lists, strict=True))

    install_patch(patches, module, "select", select, Patch(module.__name__, "select", real))


def _patch_selector(patches: Patches, cls: Any) -> None:
    real: Callable[..., list[Any]] = cls.select

    def select(self: Any, timeout: Any = None) -> Any:
        if not streams.has_any() or _LOOPS in _getframe(1).f_code.co_filename:
            return real(self, timeout)
        keys = list(self.get_map().values())
        stream = _find_stream(key.fileobj for key in keys)
        if stream is None:
            return real(self, timeout)

        def live() -> list[list[int]]:
            at = {key.fd: n for n, key in enumerate(keys)}
            return [[at[key.fd], events] for key, events in real(self, timeout) if key.fd in at]

        shown: Mapping[str, Any] = {
            "files": _show(key.fileobj for key in keys),
            "events": [key.events for key in keys],
        }
        return [(keys[n], events) for n, events in streams.wait_for(stream, "select", live, shown)]

    replace(patches, cls, select)


def install(module: Any, patches: Patches) -> None:
    """Patch `select` or `selectors`."""
    if module.__name__ == "select":
        _patch_select(patches, module)
        return
    for cls in filter(None, (getattr(module, name, None) for name in _CLASSES)):
        _patch_selector(patches, cls)
