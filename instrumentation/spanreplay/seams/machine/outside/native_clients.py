"""Seam: clients that connect in native code, invisible to patches and audit hooks.

Their requests are not recorded. While recording, a request outside every boundary is noted as a leak, with its
location, so that the run says why it can't be replayed; a replay makes no such request, or it would act on the world a
second time. CLIENTS has one row per class, or per module with functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model import guard, ids
from spanreplay.runtime.agent_patches import TypeMembers
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import is_telemetry_stack
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.outside import leaks

_getframe: Final = sys._getframe
_VERBS: Final = ("request", "get", "head", "options", "delete", "post", "put", "patch")
CLIENTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("pycurl", "Curl", ("perform",)),
    ("pycurl", "CurlMulti", ("add_handle",)),
    ("curl_cffi.curl", "Curl", ("perform",)),
    ("curl_cffi.aio", "AsyncCurl", ("add_handle",)),
    ("primp", "Client", _VERBS),
    ("primp", "AsyncClient", _VERBS),
    ("primp", "", _VERBS),
    ("zmq.sugar.socket", "Socket", ("connect",)),
)
"""Module, class in it (or nothing), and the methods that begin a request."""
_QUEUES: Final = "zmq"
_INSIDE: Final = "inproc:"
"""Beginning of the addresses of ZeroMQ that stay in the process."""


def _see(client: str) -> None:
    """Note a request that is about to be made. Raises: ReplayMiss in a replay."""
    run = active_run()
    if run is None:
        return
    server = f"a server with {client}"
    if run.resolver.connects:
        leaks.note("socket", client, server)
        return
    from spanreplay.replayer.sandbox.going_live import is_live

    if not run.is_ended and not is_live(run) and not is_telemetry_stack(_getframe(1)):
        raise run.resolver.answers.deny_socket(server)


def _is_asked(args: tuple[Any, ...]) -> bool:
    """Whether the agent's code connects a socket of ZeroMQ to another process; a kernel does so for its server."""
    is_inside = len(args) > 1 and isinstance(args[1], str) and args[1].startswith(_INSIDE)
    return not is_inside and bool(ids.find_caller(2))


def _watched(real: Callable[..., Any], client: str) -> Callable[..., Any]:
    def request(*args: Any, **kwargs: Any) -> Any:
        if client == _QUEUES and not _is_asked(args):
            return real(*args, **kwargs)
        guard.guarded("watching a native client", _see, client)
        return real(*args, **kwargs)

    request.__name__ = request.__qualname__ = getattr(real, "__name__", "request")
    request.__doc__ = real.__doc__
    return request


def install(module: Any, patches: Patches) -> None:
    """Watch the clients of one module."""
    package = module.__name__.partition(".")[0]
    for name, owner_name, methods in CLIENTS:
        owner = getattr(module, owner_name, None) if owner_name else module
        if name != module.__name__ or owner is None:
            continue
        space: Any = owner
        if isinstance(owner, type) and not owner.__flags__ & _HEAP_TYPE:
            space = TypeMembers(owner)
        for each in methods:
            real = vars(owner).get(each)
            if callable(real):
                patches.replace(space, each, _watched(real, package))


_HEAP_TYPE: Final = 1 << 9
"""Set if members of a class can be replaced (`Py_TPFLAGS_HEAPTYPE`)."""
