"""psycopg's connections that are kept: how each was set up, and which calls belong to that (`dbapi_setup.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import guard
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.process.noted_effects import SET_UPS
from spanreplay.seams.machine.databases.dbapi_setup import (
    POOL,
    Server,
    SetUp,
    find_callers,
    is_called_by_agent,
    is_of_pool,
)
from spanreplay.seams.machine.databases.postgres import SERVER_VERSION
from spanreplay.seams.machine.databases.told_apart import note_made
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["Opening", "call_async_on", "call_on", "parameter_status", "server_version"]

_SERVER: Final = ("host", "port", "dbname", "user")
_VERSION, _PARAMETERS = "server_version", "parameters"
_ABOUT: Final = (_VERSION, _PARAMETERS)
_REPORTED: Final = (
    "TimeZone", "DateStyle", "IntervalStyle", "client_encoding", "server_encoding", "standard_conforming_strings",
    "integer_datetimes", "server_version",
)  # fmt: skip
"""Settings that a server reports by itself; libraries look at them before they change them."""
_about: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()
_set_ups: Final[WeakKeyDictionary[Any, SetUp]] = WeakKeyDictionary()
_servers: Final[dict[str, Server]] = {}
"""Driver and server."""


class Opening:
    """A connection that is about to be made."""

    def __init__(self, driver: str, parameters: Callable[[], Mapping[str, Any]], modes: Mapping[str, Any]) -> None:
        """`parameters` are those that name the server; `modes` are compared."""
        run = recorded_run()
        self._driver, self._modes = driver, modes
        self._is_of_pool = is_of_pool("connect")
        is_own = self._is_of_pool and not is_called_by_agent()  # in a task or thread of the pool
        self._is_kept = run is not None and run.resolver.has(SET_UPS) and not is_own
        self._frames = find_callers() if self._is_kept else frozenset()
        named = parameters() if run is not None else {}
        self._server = {name: str(named[name]) for name in _SERVER if named.get(name)}
        self._told = 0
        self._known = _servers.setdefault(f"{driver} {sorted(self._server.items())}", Server())

    def describe(self) -> FunctionCall:
        """Describe it as a call; the server may vary by machine, so it is only listed where it differs."""
        function_call: FunctionCall = describe_effect(f"{self._driver}.connect", self._modes, Effect.READ)
        if self._is_kept:
            return function_call._replace(beside={"driver": self._driver, "server": self._server})
        if self._is_of_pool:
            function_call = function_call._replace(meta={POOL: True})
        return function_call._replace(beside={"server": self._server}) if self._server else function_call

    def answer(self, connection: Any = None) -> dict[str, Any] | None:
        """Return what is recorded of it: its server, and how another unit's connection to that was set up."""
        if not self._is_kept:
            return None
        asked = list(self._known.list_asked())
        self._told = len(asked)
        return {"class": "", **(guard.guarded("a server", _describe, connection) or {}), "setup": asked}

    def note(self, connection: Any, answer: Any) -> Any:
        """Note that it was made, and what was recorded of it; return the connection."""
        note_made(connection, self._driver)
        about = {name: answer[name] for name in _ABOUT if name in answer} if isinstance(answer, dict) else {}
        _about[connection] = about
        if self._is_kept:
            setup = SetUp(self._driver, self._server, "", self._frames, known=self._known, told=self._told)
            setup.about = about
            _set_ups[connection] = setup
        return connection


def _describe(connection: Any) -> dict[str, Any]:
    info = None if connection is None else connection.info
    if info is None:
        return {}
    found = {name: info.parameter_status(name) for name in _REPORTED}
    return {_VERSION: int(info.server_version), _PARAMETERS: found}


def server_version(connection: Any) -> int:
    """Return the version of the server of a connection that a replay never made."""
    return int(_about.get(connection, {}).get(_VERSION, SERVER_VERSION))


def parameter_status(connection: Any, name: str) -> str | None:
    """Return a setting that the server had reported when the connection was made."""
    found = _about.get(connection, {}).get(_PARAMETERS, {}).get(name)
    return None if found is None else str(found)


def call_on(connection: Any, describe: Callable[[], FunctionCall], live: Callable[[], Any]) -> Any:
    """Make a call on a connection."""
    setup = _set_ups.get(connection)
    if setup is None:
        return call_sync(describe, live)
    described = describe()
    return setup.call(described.name.rpartition(".")[2], lambda: described, live)


async def call_async_on(
    connection: Any, describe: Callable[[], FunctionCall], live: Callable[[], Awaitable[Any]]
) -> Any:
    """Make a call on a connection whose methods are coroutines."""
    setup = _set_ups.get(connection)
    if setup is None:
        return await call_async(describe, live)
    described = describe()
    is_setup = setup.is_open(described.name.rpartition(".")[2])
    return await setup.call_async(lambda: described, live, is_setup=is_setup)
