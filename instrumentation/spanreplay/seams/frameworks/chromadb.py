"""Seam: Chroma inside the agent's process (`PersistentClient`, `EphemeralClient`), implemented in Rust.

Making a client is a call, and so is each method of Chroma's API that is called outside another call. In a replay no
store is opened, so no folder is touched: clients are made without a store. Clients of a server are left to httpx.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.seams.machine.files.changes import name_of

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session

_EMBEDDED: Final = "chromadb.api.rust.RustBindingsAPI"
_IN_PYTHON: Final = "chromadb.api.segment.SegmentAPI"
_ERRORS: Final = "chromadb.errors"
_LOCAL: Final = frozenset({"__init__", "start", "stop", "get_settings", "get_user_identity"})
"""Methods that don't use the store."""
_IDENTITY: Final = frozenset({"get_tenant", "get_database"})
"""Calls that a client makes while it is created, only to see whether they raise."""
_RETRIEVES: Final = frozenset({"query", "search"})
_READS: Final = _RETRIEVES | {"count", "fork_count", "get", "heartbeat", "peek"}
_READ_PREFIXES: Final = ("count_", "get_", "list_")
_UNDOES: Final = frozenset({"delete", "delete_collection", "delete_database", "reset"})
_IDS: Final = ("collection_id", "input_collection_id", "id")
_IMPLIED: Final = ("tenant", "database", "read_level")
"""Arguments that are shown only if they differ from the default."""
_names: Final[dict[str, str]] = {}
"""Collection ID → its name, which is readable; the ID is random."""
_is_making_client: ContextVar[bool] = ContextVar("spanreplay_chromadb_client", default=False)
_opening: Final = make_lock()


class _Method(NamedTuple):
    """One method of the API."""

    name: str
    signature: inspect.Signature
    module: Any
    """The module of the API, with its functions that describe configurations."""

    @property
    def kind(self) -> str:
        return Kind.RETRIEVER.value if self.name in _RETRIEVES else Kind.TOOL.value

    @property
    def effect(self) -> str:
        if self.name in _UNDOES:
            return Effect.IRREVERSIBLE.value
        is_read = self.name.startswith(_READ_PREFIXES) and self.name != "get_or_create_collection"
        return Effect.READ.value if is_read or self.name in _READS else Effect.WRITE.value


class _Unopened:
    """Replaces the bindings of a store that a replay has not opened."""

    def __init__(self, api: Any, start: Callable[[], None]) -> None:
        self._api = api
        self._start = start

    def open(self) -> Any:
        """Open the store itself and return its bindings."""
        with _opening:
            if self._api.bindings is self:
                self._start()
        return self._api.bindings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        run = active_run()
        if run is not None and not run.resolver.connects and run.resolver.answers.has_gone_on:
            return getattr(self.open(), name)  # the store is as the run left it
        raise import_module(_ERRORS).InternalError(
            f"the client of {_store(self._api._system.settings)} was made outside of a live call and is replayed: "
            f"{name} can't run live on it; make the client in the live call, or let tool:chromadb.connect go live too"
        )


def install(module: Any, patches: Patches) -> None:
    """Patch `chromadb.api.client`, `chromadb.api.rust` or `chromadb.telemetry.product.posthog`."""
    if module.__name__ == "chromadb.api.client":
        for cls in (module.Client, module.AdminClient):
            patches.wrap(cls, "__init__", partial(_connect, inspect.signature(cls.__init__)))
        return
    if module.__name__.startswith("chromadb.telemetry"):
        patches.wrap(module.Posthog, "capture", _report)
        return
    api = module.RustBindingsAPI
    patches.wrap(api, "start", _start)
    for name, function in tuple(vars(api).items()):
        if inspect.isfunction(function) and name not in _LOCAL:
            method = _Method(name.lstrip("_"), inspect.signature(function), module)
            patches.wrap(api, name, partial(_ask, method))


def _start(wrapped: Any, api: Any, args: Any, kwargs: Any) -> None:
    if is_replayed_here():
        api.bindings = _Unopened(api, wrapped)
    else:
        wrapped(*args, **kwargs)


def _report(wrapped: Any, telemetry: Any, args: Any, kwargs: Any) -> None:
    if not is_replayed_here():  # it keeps a file in the user's home
        wrapped(*args, **kwargs)


# ── A client ────────────────────────────────────────────────────────────────────────────────────────
def _connect(signature: inspect.Signature, wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    bound = signature.bind(client, *args, **kwargs)
    bound.apply_defaults()
    settings = bound.arguments.get("settings")
    api = str(getattr(settings, "chroma_api_impl", ""))
    if _is_making_client.get() or api not in (_EMBEDDED, _IN_PYTHON):
        wrapped(*args, **kwargs)
        return
    if api == _IN_PYTHON:
        _refuse(settings)
        _make(wrapped, args, kwargs)
        return
    is_served = True

    def live() -> None:
        nonlocal is_served
        is_served = False
        wrapped(*args, **kwargs)
        bindings = getattr(client._server, "bindings", None)  # shared by every client of the store
        if isinstance(bindings, _Unopened) and not is_replayed_here():
            bindings.open()

    def describe() -> FunctionCall:
        shown = {"store": _store(settings)}
        shown |= {name: value for name in _IMPLIED if (value := _given(signature, bound.arguments, name)) is not None}
        return FunctionCall(Kind.TOOL.value, "chromadb.connect", Effect.WRITE.value, shown)

    if _is_inside_call():
        live()
        return
    call_sync(describe, live)
    if is_served:
        _make(wrapped, args, kwargs)


def _make(wrapped: Any, args: Any, kwargs: Any) -> None:
    """Make a client without recording that or the calls it makes meanwhile."""
    token = set_variable(_is_making_client, True)
    try:
        wrapped(*args, **kwargs)
    finally:
        reset_variable(_is_making_client, token)


def _refuse(settings: Any) -> None:
    """Refuse Chroma's older API, whose calls are not recorded, so a replay must not run them. Raises: ReplayMiss."""
    run = active_run()
    if run is None or _is_inside_call():
        return
    what = f"opening {_store(settings)} with Chroma's SegmentAPI"
    if run.resolver.keeps:
        run.hole(f"{what}: its calls are not in this run; those of chromadb 1 would be")
    elif is_replayed_here():
        from spanreplay.replayer.sandbox.hermetic import block

        raise block(cast("Session", run.resolver.answers), run, "tool:chromadb.connect", what)


def _store(settings: Any) -> str:
    """Return the folder as calls name it."""
    if not settings.is_persistent:
        return ":memory:"
    run, folder = active_run(), str(settings.persist_directory)
    return folder if run is None else name_of(run, folder)


def _is_inside_call() -> bool:
    run = active_run()
    return run is not None and current_crossing(run.root_lane) is not None


# ── Calls of the API ────────────────────────────────────────────────────────────────────────────────
def _ask(method: _Method, wrapped: Any, api: Any, args: Any, kwargs: Any) -> Any:
    if _is_making_client.get() and method.name in _IDENTITY:
        return None
    if _is_inside_call():
        return wrapped(*args, **kwargs)
    arguments = method.signature.bind(api, *args, **kwargs).arguments

    def describe() -> FunctionCall:
        return FunctionCall(method.kind, f"chromadb.{method.name}", method.effect, _describe(method, api, arguments))

    result = call_sync(describe, lambda: wrapped(*args, **kwargs))
    _learn_names(result)
    if method.name == "modify" and arguments.get("new_name"):
        _learn(arguments["id"], arguments["new_name"])
    return result


def _learn_names(result: Any) -> None:
    """Remember the names of collections; never inside another call, which a replay does not run."""
    for each in result if isinstance(result, (list, tuple)) else (result,):
        if type(each).__module__ == "chromadb.types" and type(each).__name__ == "Collection":
            _learn(each.id, each.name)


def _learn(collection_id: Any, name: str) -> None:
    known = str(collection_id)
    if known in _names or len(_names) < config.COLLECTIONS_MAX:
        _names[known] = name


def _given(signature: inspect.Signature, arguments: Any, name: str) -> Any:
    """Return an argument that differs from the default, else None."""
    value = arguments.get(name)
    return None if value is None or value == signature.parameters[name].default else value


def _describe(method: _Method, api: Any, arguments: Any) -> dict[str, Any]:
    """Return the arguments by name, with the collection's name for its ID, without those left to Chroma's defaults."""
    shown: dict[str, Any] = {"store": _store(api._system.settings)}
    for name, value in arguments.items():
        if name in _IDS:
            shown["collection"] = _names.get(str(value), str(value))
        elif name in _IMPLIED:
            if (given := _given(method.signature, arguments, name)) is not None:
                shown[name] = given
        elif name in _SHOWN:
            if value:
                shown[name] = _show(name, value, method.module, arguments.get("metadata"))
        elif name != "self" and value is not None:
            shown[name] = value
    return shown


# ── Arguments that are not data: objects, with embedding functions inside ───────────────────────────
def _show(name: str, value: Any, module: Any, metadata: Any) -> Any:
    try:
        return _SHOWN[name](value, module, metadata)
    except Exception:  # noqa: BLE001 -- Chroma is about to refuse it, and its refusal is recorded
        return {"refused": type(value).__name__}


def _show_configuration(value: Any, module: Any, metadata: Any) -> Any:
    function = module.create_collection_configuration_to_json_str
    given = (value, metadata)[: len(inspect.signature(function).parameters)]
    return _without_nothing(json.loads(function(*given)))


def _show_update(value: Any, module: Any, _: Any) -> Any:
    return _without_nothing(json.loads(module.update_collection_configuration_to_json_str(value)))


def _without_nothing(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


_SHOWN: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "configuration": _show_configuration,
    "new_configuration": _show_update,
    "schema": lambda value, *_: value.serialize_to_json(),
    "searches": lambda value, *_: [each.to_dict() for each in value],
}
