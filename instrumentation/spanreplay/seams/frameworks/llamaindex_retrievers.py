"""Seam: the search (`_retrieve`, `_aretrieve`) of every LlamaIndex retriever.

LlamaIndex wraps each of them in a span when a class is made: the boundary lies inside.
"""

from __future__ import annotations

from typing import Any

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses


def install(module: Any, patches: Patches) -> None:
    """Patch `llama_index.core.base.base_retriever`."""
    search, asearch = function_wrappers(_describe)
    wrap_subclasses(module.BaseRetriever, {"_retrieve": search, "_aretrieve": asearch}, patches)


def _describe(retriever: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall:
    query = args[0] if args else kwargs.get("query_bundle")
    # The embedding is left out: it is the answer of another call, and may be absent
    arguments = {"query": getattr(query, "query_str", query)}
    return FunctionCall(Kind.RETRIEVER.value, type(retriever).__name__, Effect.READ.value, arguments)
