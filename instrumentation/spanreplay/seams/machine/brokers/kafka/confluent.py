"""Seam: confluent-kafka: what a program gives to librdkafka, and what it gets, above the library's threads.

`Producer`, `Consumer` and the base of `AdminClient` are C types. Their methods are replaced in the types, so that all
subclasses have them; a class of ours stands for each type where programs make objects of it. In a replay no object of
the library is made.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from spanreplay.runtime.agent_patches import TypeMembers
from spanreplay.runtime.patches import Patches, require
from spanreplay.seams.machine.brokers.kafka import confluent_admin, confluent_async
from spanreplay.seams.machine.brokers.kafka.confluent_clients import make_class, make_client
from spanreplay.seams.machine.brokers.kafka.confluent_methods import METHODS, as_method, methods_of

_NEEDED: Final = {"Producer": ("produce", "poll", "flush"), "Consumer": ("poll", "subscribe", "commit", "close")}


def install(module: Any, patches: Patches) -> None:
    """Patch one of the library's modules. Raises: AttributeError if it is not as expected."""
    if hasattr(module, "AdminClient"):
        confluent_admin.install(module, patches)
        return
    if not hasattr(module, "Producer"):
        confluent_async.install(module, patches)
        return
    for name, methods in _NEEDED.items():
        require(getattr(module, name), *methods)
    clients = [each for each in vars(module).values() if isinstance(each, type) and _is_client(each)]
    for raw in clients:
        _replace(module, raw, patches)


def _is_client(cls: type) -> bool:
    """Whether a class connects: a client that is not in our table is known by its credentials."""
    return cls.__name__ in METHODS or hasattr(cls, "set_sasl_credentials")


def _replace(module: Any, raw: type, patches: Patches) -> None:
    real_init, real_len = vars(raw)["__init__"], vars(raw).get("__len__")
    space: Any = TypeMembers(raw)
    for name, made in methods_of(raw).items():
        patches.replace(space, name, made)

    def init(client: Any, args: Any, kwargs: Any) -> None:
        make_client(real_init, client, args, kwargs)

    patches.replace(space, "__init__", as_method(init, real_init))
    made_class = make_class(raw, real_init, real_len)
    for place in _copies(module, raw):
        for each in [each for each, value in vars(place).items() if value is raw]:
            patches.replace(place, each, made_class)


def _copies(module: Any, raw: type) -> list[Any]:
    """Return the modules that hold the type: others than its own if they were imported before."""
    loaded: list[Any] = list(sys.modules.values())
    found = [each for each in loaded if issubclass(type(each), ModuleType) and each is not module]
    # not vars(): it would load a lazy module
    spaces = [(each, object.__getattribute__(each, "__dict__")) for each in found]
    return [module, *(each for each, space in spaces if any(value is raw for value in list(space.values())))]
