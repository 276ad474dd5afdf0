"""Records what an AI agent did, and replays it byte for byte.

Most programs need nothing from here: `opentelemetry-instrument python agent.py` records them unchanged.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spanreplay._version import VERSION
from spanreplay.declared import boundary
from spanreplay.errors import ReplayMiss, SpanreplayError

if TYPE_CHECKING:
    from spanreplay import human
    from spanreplay.api import Plan, record, replay

__all__ = ["VERSION", "Plan", "ReplayMiss", "SpanreplayError", "boundary", "human", "record", "replay"]
__version__ = VERSION


class _OfApi:
    """A name of `spanreplay.api`, found at first use: a module that only declares boundaries must stay light."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, package: Any, owner: type) -> Any:
        from spanreplay import api

        return getattr(api, self._name)

    def __set__(self, package: Any, value: Any) -> None:
        # Python binds a submodule to its package; of `record.py` and `replay/` the functions are public
        if not isinstance(value, ModuleType):
            raise AttributeError(f"{self._name} can't be replaced")


class _Submodule:
    """A module below this one, imported at first use."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, package: Any, owner: type) -> Any:
        from importlib import import_module

        return import_module(f"spanreplay.{self._name}")

    def __set__(self, package: Any, value: Any) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"{self._name} can't be replaced")


class _Package(ModuleType):
    human = _Submodule()
    Plan = _OfApi()
    record = _OfApi()
    replay = _OfApi()


sys.modules[__name__].__class__ = _Package
