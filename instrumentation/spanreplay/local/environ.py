"""Seam: environment variables that the agent's code reads: compared, never replaced and never recorded.

A keyed hash of each value is kept, so that a replay can say which variable is another one now.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay import attributes as names
from spanreplay import guard, ids
from spanreplay._patch import Patches
from spanreplay.local import leaks
from spanreplay.local.patching import asks, recorded_run

if TYPE_CHECKING:
    from spanreplay.run import Run

_getframe: Final = sys._getframe
_NAMES_MAX: Final = 500
_OURS: Final = ("SPANREPLAY_", "OTEL_")
_ABSENT: Final = "absent"


class Environment:
    """What the agent's code has read so far: name → keyed hash of the value. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._hashes: dict[str, str] = {}
        self._key = b""

    def saw(self, name: str, value: str | None) -> None:
        """Note the first reading of a variable."""
        if self._run.session is not None and self._run.leaks is not None:
            self._deny_other(name, value)
        if name in self._hashes or len(self._hashes) >= _NAMES_MAX or name.startswith(_OURS):
            return
        self._hashes[name] = self._hash(name, value)

    def _hash(self, name: str, value: str | None) -> str:
        if value is None:
            return _ABSENT
        self._key = self._key or self._run.redactor.derive(b"environment")
        return hmac.digest(self._key, f"{name}={value}".encode("utf-8", "surrogateescape"), "sha256")[:12].hex()

    def _deny_other(self, name: str, value: str | None) -> None:
        """In a strict replay a variable must have the value that it had. Raises: ReplayMiss."""
        session, refused = self._run.session, self._run.leaks
        if session is None or refused is None or name.startswith(_OURS):
            return
        root = session.recording.root
        recorded = root.manifest.get("environment_read")
        if not isinstance(recorded, Mapping) or root.env.get(names.REDACTION_KEY) != self._run.redactor.fingerprint:
            return
        if recorded.get(name) != self._hash(name, value):
            what = "os.environ" if name in recorded else "os.environ, unread when this was recorded,"
            refused.add("environment", what, name, ids.find_caller(4), is_hole=True)

    def describe(self) -> dict[str, str]:
        """For the manifest."""
        return dict(sorted(self._hashes.items()))

    def find_differing(self, recorded: Any, env: Mapping[str, Any]) -> list[str]:
        """Names whose value is another than when it was recorded; none can be told with another redaction key."""
        if not isinstance(recorded, Mapping) or env.get(names.REDACTION_KEY) != self._run.redactor.fingerprint:
            return []
        return [name for name, value in self.describe().items() if recorded.get(name, value) != value]


def install(module: Any, patches: Patches) -> None:
    """Patch reading of `os.environ`; `os.getenv` and `environ.get` come to it."""
    cls: Any = type(os.environ)
    real = cls.__getitem__

    def getitem(self: Any, key: Any) -> Any:
        if not asks(_getframe(1)):
            return real(self, key)
        if self is not os.environ:
            guard.guarded("environment", leaks.note, "environment", "os.environb", os.fsdecode(key))
            return real(self, key)
        run = recorded_run()
        environment = None if run is None else run.environment_read
        if run is None or environment is None or not isinstance(key, str):
            return real(self, key)
        if run.census is not None:
            run.census.add("environment", key, "compared")
        try:
            value = real(self, key)
        except KeyError:
            guard.guarded("environment", environment.saw, key, None)
            raise
        guard.guarded("environment", environment.saw, key, value)
        return value

    getitem.__name__, getitem.__qualname__ = "__getitem__", f"{cls.__name__}.__getitem__"
    patches.replace(cls, "__getitem__", getitem)
