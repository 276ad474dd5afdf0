"""Seam: environment variables that are read.

A keyed hash is kept of each value that the agent's code reads, so that a replay can name the variables that have
changed. For variables that the agent or a library uses by name, the redacted value is kept too (`used_variables.py`): a
replay gives it to an agent that lacks the variable (`replayer/resolve/recorded_env.py`).
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model import guard, ids
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.caller.caller import is_agent
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.used_variables import VARIABLES, UsedVariables, go_through, is_passed
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.outside import leaks

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
_NAMES_MAX: Final = 500
_OURS: Final = ("SPANREPLAY_", "OTEL_")
_ABSENT: Final = "absent"
_ENCODING: Final = sys.getfilesystemencoding()


class Environment:
    """The variables that the agent's code has read so far: name → keyed hash of the value. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._hashes: dict[str, str] = {}
        self.settled: dict[str, bytes] = {}
        """Variables for which another read by name adds nothing, whoever reads → encoded name; empty in a replay."""
        self._key = b""
        self.used = UsedVariables(run)
        """The values that a replay gives to an agent that lacks the variable."""

    def saw(self, name: str, value: str | None) -> None:
        """Note the first read of a variable."""
        if not self._run.resolver.keeps and self._run.leaks is not None:
            self._deny_other(name, value)
        if name in self._hashes or len(self._hashes) >= _NAMES_MAX or name.startswith(_OURS):
            return
        self._hashes[name] = self._hash(name, value)
        if self._run.resolver.keeps and self.used.is_settled(name):
            self.settled[name] = os.fsencode(name)

    def _hash(self, name: str, value: str | None) -> str:
        if value is None:
            return _ABSENT
        self._key = self._key or self._run.redactor.derive(b"environment")
        return hmac.digest(self._key, f"{name}={value}".encode("utf-8", "surrogateescape"), "sha256")[:12].hex()

    def _deny_other(self, name: str, value: str | None) -> None:
        """Require, in a strict replay, that a variable has its recorded value. Raises: ReplayMiss."""
        session, refused = self._run.resolver.answers, self._run.leaks
        if refused is None or name.startswith(_OURS):
            return
        if name in session.recorded_env.given:
            return
        root = session.recording.root
        recorded = root.manifest.get("environment_read")
        if not isinstance(recorded, Mapping) or root.env.get(names.REDACTION_KEY) != self._run.redactor.fingerprint:
            return
        if recorded.get(name) != self._hash(name, value):
            what = "os.environ" if name in recorded else "os.environ, unread when this was recorded,"
            refused.add("environment", what, name, ids.find_caller(4), is_hole=True)

    def describe(self) -> dict[str, str]:
        """Return the hashes for the manifest, sorted by name."""
        return dict(sorted(self._hashes.items()))

    def for_manifest(self, parts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return members for the manifest; `parts` are those that the run's other processes have left."""
        for part in parts.values():
            self.used.add(part["manifest"].get(VARIABLES) or ())
        is_kept = self._run.resolver.keeps or self._run.is_continued
        used = guard.guarded("variables", self.used.describe) if is_kept else None
        return {"environment_read": self.describe(), **(used or {})}

    def find_differing(self, recorded: Any, env: Mapping[str, Any]) -> list[str]:
        """Return the names whose value has changed since the recording; empty if the redaction key differs."""
        if not isinstance(recorded, Mapping) or env.get(names.REDACTION_KEY) != self._run.redactor.fingerprint:
            return []
        found = [name for name, value in self.describe().items() if recorded.get(name, value) != value]
        return [name for name in found if name not in self._run.resolver.variables.given]


def _note_use(key: Any, frame: FrameType) -> None:
    run = active_run()
    if run is not None and run.environment_read is not None and recorded_run() is not None:
        run.environment_read.used.read(key, frame)


def _find_settled(environ: object, key: Any) -> bytes | None:
    """Return the encoded name of a variable whose read adds nothing; the fast path for repeated reads."""
    run = active_run() if environ is os.environ and type(key) is str else None
    if run is None or run.environment_read is None or run.audit is not None:
        return None
    settled = run.environment_read.settled.get(key)
    return None if settled is None or is_passed(key) else settled


def install(module: Any, patches: Patches) -> None:
    """Patch reads of `os.environ`; `os.getenv`, `environ.get`, `in` and copies end up there."""
    cls: Any = type(os.environ)
    real, real_iter = cls.__getitem__, cls.__iter__
    is_known = type(getattr(os.environ, "_data", None)) is dict  # CPython's: name → value, both encoded

    def iterate(self: Any) -> Any:
        names = list(real_iter(self))
        return go_through(names) if self is os.environ else iter(names)

    def getitem(self: Any, key: Any) -> Any:
        settled = _find_settled(self, key)
        if settled:
            value = self._data.get(settled) if is_known else None
            return real(self, key) if value is None else value.decode(_ENCODING, "surrogateescape")
        guard.guarded("environment", _note_use, key, _getframe(1))
        if not is_agent(_getframe(1)):
            return real(self, key)
        if self is not os.environ:
            guard.guarded("environment", leaks.note, "environment", "os.environb", os.fsdecode(key))
            return real(self, key)
        run = recorded_run()
        environment = None if run is None else run.environment_read
        if run is None or environment is None or not isinstance(key, str):
            return real(self, key)
        if run.audit is not None:
            run.audit.add("environment", key, "compared")
        try:
            value = real(self, key)
        except KeyError:
            guard.guarded("environment", environment.saw, key, None)
            raise
        guard.guarded("environment", environment.saw, key, value)
        return value

    getitem.__name__, getitem.__qualname__ = "__getitem__", f"{cls.__name__}.__getitem__"
    patches.replace(cls, "__getitem__", getitem)
    iterate.__name__, iterate.__qualname__ = "__iter__", f"{cls.__name__}.__iter__"
    patches.replace(cls, "__iter__", iterate)
