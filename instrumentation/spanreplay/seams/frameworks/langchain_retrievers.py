"""Seam: the search (`_get_relevant_documents`, `_aget_relevant_documents`) of every LangChain retriever."""

from __future__ import annotations

from typing import Any

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses


def install(module: Any, patches: Patches) -> None:
    """Patch `langchain_core.retrievers`."""
    search, asearch = function_wrappers(_describe)
    methods = {"_get_relevant_documents": search, "_aget_relevant_documents": asearch}
    wrap_subclasses(module.BaseRetriever, methods, patches)


def _describe(retriever: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall:
    arguments = {k: v for k, v in kwargs.items() if k != "run_manager"}
    if args:
        arguments["query"] = args[0]
    name = getattr(retriever, "name", None) or type(retriever).__name__
    return FunctionCall(Kind.RETRIEVER.value, str(name), Effect.READ.value, arguments)
