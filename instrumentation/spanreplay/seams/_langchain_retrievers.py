"""Seam: the search (`_get_relevant_documents`, `_aget_relevant_documents`) of every LangChain retriever."""

from __future__ import annotations

import contextvars
from typing import Any

from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_async, call_sync
from spanreplay.run import active_run
from spanreplay.seams._subclasses import wrap_subclasses

_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_retriever", default=None)


def install(module: Any, patches: Patches) -> None:
    """Patch `langchain_core.retrievers`."""
    wrap_subclasses(
        module.BaseRetriever,
        {"_get_relevant_documents": _search, "_aget_relevant_documents": _asearch},
        patches,
    )


def _describe(retriever: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leaf:
    arguments = {k: v for k, v in kwargs.items() if k != "run_manager"}
    if args:
        arguments["query"] = args[0]
    name = getattr(retriever, "name", None) or type(retriever).__name__
    return Leaf(Kind.RETRIEVER.value, str(name), Effect.READ.value, arguments)


def _search(wrapped: Any, retriever: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _inside.get() is retriever:
        return wrapped(*args, **kwargs)

    def live() -> Any:
        token = _inside.set(retriever)
        try:
            return wrapped(*args, **kwargs)
        finally:
            _inside.reset(token)

    return call_sync(lambda: _describe(retriever, args, kwargs), live)


async def _asearch(wrapped: Any, retriever: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _inside.get() is retriever:
        return await wrapped(*args, **kwargs)

    async def live() -> Any:
        token = _inside.set(retriever)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            _inside.reset(token)

    return await call_async(lambda: _describe(retriever, args, kwargs), live)
