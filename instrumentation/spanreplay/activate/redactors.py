"""The redactor of a process, created when the first value needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanreplay.model import config
from spanreplay.model.own_threads import make_lock

if TYPE_CHECKING:
    from spanreplay.redact import Redactor, RunRedactor


class LazyRedactor:
    """Proxy for a value that is built at first use, so that no key file is created before there is data to redact."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._lock = make_lock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            built = self.__dict__.get("_built")
            if built is None:
                built = self.__dict__["_built"] = self._build()
        value = getattr(built, name)
        if callable(value):
            self.__dict__[name] = value  # later accesses find it directly
        return value


def build_redactor(data_dir: Path, parent: RunRedactor | None = None) -> RunRedactor:
    """Build a run's redactor; it also knows the secrets of `parent`, the redactor of the parent process's run."""
    redactor = load_redactor(data_dir).run()
    if parent is not None:
        redactor.adopt(parent)
    return redactor


def load_redactor(data_dir: Path) -> Redactor:
    from spanreplay.redact import Redactor, load_or_create_key

    key_file = config.read_setting("SPANREPLAY_REDACT_KEY")
    key, key_id = load_or_create_key(Path(key_file) if key_file else data_dir / "redact.key", is_named=bool(key_file))
    return Redactor(key, key_id)
