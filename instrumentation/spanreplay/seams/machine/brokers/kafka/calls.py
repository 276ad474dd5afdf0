"""Calls of Kafka's clients: their names, arguments and effects, the same for all clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.calls.taking import Source

CLIENTS: Final = frozenset({"confluent-kafka", "aiokafka", "kafka-python", "kafka-python-ng"})
"""The distributions of the clients."""
_COMPARED: Final = frozenset(
    {"acks", "auto_offset_reset", "enable_auto_commit", "enable_auto_offset_store", "enable_idempotence",
     "enable_partition_eof", "group_id", "group_instance_id", "isolation_level", "partitioner", "request_required_acks",
     "transactional_id"}
)  # fmt: skip
"""Settings of a client that decide what the server gets or gives."""
_SERVERS: Final = frozenset({"bootstrap_servers", "metadata_broker_list"})
_SECRET: Final = re.compile(r"pass(word|wd)|secret|token|jaas|_pem$|credential")
_USER: Final = re.compile(r"[^@/,\s]*@")
_HIDDEN: Final = "***"


class Settings:
    """What is compared of a client's settings, and its servers, which are only listed where they differ."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        named = {str(name).replace(".", "_"): value for name, value in given.items()}
        self.compared = {name: _show_setting(named[name]) for name in sorted(_COMPARED & set(named))}
        servers = next((named[name] for name in sorted(_SERVERS) if name in named), None)
        self.server = "" if servers is None else _USER.sub("", _join(servers))
        self._secrets = [value for name, value in named.items() if _SECRET.search(name) and _is_text(value)]

    def source(self, client: Any) -> Source:
        """Return what a consumer takes messages from."""
        return Source(f"kafka {self.compared.get('group_id') or ''}".strip(), id(client))

    def hide(self) -> None:
        """Let the run's texts and errors not show the client's credentials."""
        if self._secrets:
            hide(self._secrets)


def _is_text(value: Any) -> bool:
    return bool(value) and isinstance(value, (str, bytes))


def _join(servers: Any) -> str:
    return ",".join(map(str, servers)) if isinstance(servers, (list, tuple, set)) else str(servers)


def _show_setting(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    shown = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    return f"{getattr(shown, '__module__', '')}.{shown.__qualname__}"


def hide(values: list[Any]) -> str:
    """Let the run's texts not show these credentials; return what a call shows instead."""
    run = recorded_run()
    if run is not None:
        texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values]
        run.redactor.hide([each for each in texts if each])
    return _HIDDEN


def hide_secrets(shown: Any) -> Any:
    """Return arguments of an administrator's request without credentials: values of names that tell."""
    if isinstance(shown, Mapping):
        return {name: _hide_named(name, each) for name, each in shown.items()}
    if isinstance(shown, (list, tuple)):
        if len(shown) == _PAIR and isinstance(shown[0], str):
            return [shown[0], _hide_named(shown[0], shown[1])]
        return [hide_secrets(each) for each in shown]
    return shown


def _hide_named(name: Any, value: Any) -> Any:
    if isinstance(name, str) and _TELLING.search(name.lower().replace(".", "_")) and value is not None:
        return hide([value])
    return hide_secrets(value)


_PAIR: Final = 2
_TELLING: Final = re.compile(r"pass(word|wd)|secret|jaas|^salt|_key$|_pem$|token|hmac")


def describe(settings: Settings, name: str, arguments: Mapping[str, Any], effect: Effect) -> FunctionCall:
    """Describe one call of a client."""
    shown = {**arguments, "settings": settings.compared} if settings.compared else arguments
    made = FunctionCall(Kind.TOOL.value, f"kafka.{name}", effect.value, shown, prints=False)
    return made._replace(beside={"server": {"servers": settings.server}}) if settings.server else made
