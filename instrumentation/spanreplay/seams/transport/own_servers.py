"""Servers that the agent's process runs itself: requests to them are not a boundary, because they run in this process.

They are recognised by the ports that their sockets listen on. A server in native code (uvloop, grpc) is not recognised.
"""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import note_served
from spanreplay.runtime.run import active_run


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`."""

    def listen(wrapped: Any, sock: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if active_run() is not None and sock.family in (module.AF_INET, module.AF_INET6):
            note_served(sock.getsockname()[1])
        return result

    patches.wrap(module.socket, "listen", listen)
