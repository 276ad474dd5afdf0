"""Stand-ins for a kernel's ports, threads and clients in a replay."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from spanreplay.units.jobs import is_replay
from spanreplay.units.notebook.cell import note_text

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

__all__ = ["install"]

_UNMADE = (
    "init_connection_file",
    "init_poller",
    "init_sockets",
    "init_heartbeat",
    "write_connection_file",
    "log_connection_info",
    "init_signal",
)
"""Steps of a kernel's start that a replay skips, because they serve its clients."""


def install(app: Any, patches: Patches) -> None:
    """Patch a kernel's application."""
    for name in _UNMADE:
        patches.wrap(app, name, _leave_out)
    patches.wrap(app, "init_io", _init_io)
    patches.wrap(app, "init_kernel", _init_kernel)


def _leave_out(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    return None if is_replay() else wrapped(*args, **kwargs)


class Nowhere:
    """A socket without clients."""

    def send_multipart(self, *args: Any, **kwargs: Any) -> None:
        """Discard the message."""

    send = send_multipart

    def flush(self, *args: Any, **kwargs: Any) -> None:
        """No-op."""


class _Channels:
    """Replaces the thread in which a kernel would read its messages."""

    def __init__(self) -> None:
        self.parent_thread = threading.current_thread()


class Stream(io.TextIOBase):
    """A kernel's standard stream: text is added to the cell and shown where the replay was started."""

    encoding = "UTF-8"
    parent_header: Any = None

    def __init__(self, name: str, shown: Any) -> None:
        self.name = name
        self._shown = shown

    def write(self, text: str, /) -> int:
        """Write text. Raises: TypeError if it is not a string."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        note_text(self.name, text)
        if self._shown is not None:
            self._shown.write(text)
        return len(text)

    def writable(self) -> bool:
        """Always True."""
        return True

    def flush(self) -> None:
        """Flush the stream that shows the text."""
        if self._shown is not None:
            self._shown.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream that shows the text."""
        return int(self._shown.fileno())

    def set_parent(self, parent: Any) -> None:
        """No-op: there is no parent message."""


def _init_io(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        return wrapped(*args, **kwargs)
    sys.stdout = Stream("stdout", sys.__stdout__)
    sys.stderr = Stream("stderr", sys.__stderr__)
    app.patch_io()
    return None


def _init_kernel(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        return wrapped(*args, **kwargs)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # silences a debugger warning; no debugger is used
    app.config.HistoryManager.hist_file = ":memory:"  # no thread and no file for the input history
    app.iopub_socket = nowhere = Nowhere()
    app.kernel = app.kernel_class.instance(
        parent=app,
        session=app.session,
        shell_channel_thread=_Channels(),
        iopub_socket=nowhere,
        stdin_socket=nowhere,
        log=app.log,
        profile_dir=app.profile_dir,
        user_ns=app.user_ns,
    )
    return None
