"""The user and session that a run works for, as named by the agent's own telemetry, framework or requests.

A setting decides (SPANREPLAY_USER_ID, SPANREPLAY_SESSION_ID); without one, the first name found does. A later,
different name from the same source is counted, and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

from spanreplay.model.own_threads import make_lock

__all__ = ["OTHERS", "Who"]

USER, SESSION = "user", "session"
WHO: Final = "who"
"""Member of the manifest of a process that another one has started."""
OTHERS: Final = "others"
"""Member of the manifest: how many other users and sessions were seen."""
OTHERS_MAX: Final = 1000
CHARACTERS_MAX: Final = 256
_SETTING: Final = "setting"
_ATTRIBUTES: Final = {USER: ("user.id", "enduser.id"), SESSION: ("session.id", "gen_ai.conversation.id")}
"""Names of span attributes, of members of baggage, and of OpenInference's entries in the context."""
_METADATA: Final = {
    USER: ("user_id", "langfuse_user_id"),
    SESSION: ("session_id", "thread_id", "conversation_id", "langfuse_session_id"),
}
"""Keys of the configuration and the metadata of LangChain and LangGraph, and of the metadata of a request."""
_MEMBERS: Final = ("user", "safety_identifier")
"""Members of a request to a model that name its user."""
_CONFIG_MODULE: Final = "langchain_core.runnables.config"
_CONFIG_VARIABLE: Final = "var_child_runnable_config"


class Who:
    """The user and the session of one run. Thread-safe."""

    def __init__(self, user: str = "", session: str = "") -> None:
        self._values = {USER: user, SESSION: session}
        self._sources = {what: _SETTING for what, value in self._values.items() if value}
        self._others: dict[str, set[str]] = {USER: set(), SESSION: set()}
        self._lock = make_lock()

    @property
    def user(self) -> str:
        """The user's id; '' if nobody has named one."""
        return self._values[USER]

    @property
    def session(self) -> str:
        """The session's id; '' if nobody has named one."""
        return self._values[SESSION]

    def look(self) -> None:
        """Look at the context in which a call begins."""
        context = otel_context.get_current()
        if context:
            self._see_named("context", context, _ATTRIBUTES)
            self._see_named("baggage", baggage.get_all(context), _ATTRIBUTES)
            self.look_at_span(getattr(trace.get_current_span(context), "attributes", None))
        if _CONFIG_MODULE in sys.modules:
            self._look_at_config()

    def look_at_baggage(self, context: otel_context.Context) -> None:
        """Look at the baggage of an incoming request, which nobody has made the current one."""
        self._see_named("baggage", baggage.get_all(context), _ATTRIBUTES)

    def look_at(self, source: str, found: Mapping[str, Any]) -> None:
        """Look at a user and a session that are named explicitly."""
        for what in (USER, SESSION):
            self._see(source, what, found.get(what))

    def look_at_span(self, attributes: Mapping[str, Any] | None) -> None:
        """Look at the attributes of somebody else's span."""
        if attributes:
            self._see_named("span", attributes, _ATTRIBUTES)

    def look_at_request(self, body: Any) -> None:
        """Look at a request to a model, after the context in which it is made."""
        self.look()
        if not isinstance(body, Mapping):
            return
        for name in _MEMBERS:
            self._see("request", USER, body.get(name))
        metadata = body.get("metadata")
        if isinstance(metadata, Mapping):
            self._see_named("request", metadata, _METADATA)

    def _look_at_config(self) -> None:
        variable = getattr(sys.modules.get(_CONFIG_MODULE), _CONFIG_VARIABLE, None)
        config: Any = None if variable is None else variable.get()
        for part in ("configurable", "metadata") if isinstance(config, Mapping) else ():
            found = config.get(part)
            if isinstance(found, Mapping):
                self._see_named("langchain", found, _METADATA)

    def _see_named(self, source: str, found: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> None:
        for what, keys in names.items() if found else ():
            for key in keys:
                value = found.get(key)
                if value:
                    self._see(source, what, value)
                    break

    def _see(self, source: str, what: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return
        text = str(value).strip()[:CHARACTERS_MAX]
        if not text or text == self._values[what]:
            return
        with self._lock:
            decided = self._sources.setdefault(what, source)
            if not self._values[what]:
                self._values[what] = text
            elif decided == source and len(self._others[what]) < OTHERS_MAX:
                self._others[what].add(text)

    def for_manifest(self, parts: Mapping[int, Mapping[str, Any]] | None, *, is_member: bool) -> dict[str, Any]:
        """Members for the manifest; `parts` are the contributions of other processes of the run."""
        if is_member:
            return {WHO: dict(self._values)}
        for part in (parts or {}).values():
            for what, value in (part["manifest"].get(WHO) or {}).items():
                self._see("process", what, value)
        others = {what: len(found - {self._values[what]}) for what, found in self._others.items() if found}
        return {OTHERS: others} if others else {}
