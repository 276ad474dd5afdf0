"""LangChain's tools and retrievers: the tool itself is the boundary; LangChain's code around it runs for real."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core import retrievers
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException, tool
from langchain_core.tools import base as tools_base

from spanreplay.model.call import CallRecord
from spanreplay.seams.frameworks import langchain_retrievers as _langchain_retrievers
from spanreplay.seams.frameworks import langchain_tools as _langchain_tools
from support.in_process import Replayed, recorded, replayed

SEAMS = (
    (_langchain_tools.install, sys.modules[tools_base.__name__]),
    (_langchain_retrievers.install, sys.modules[retrievers.__name__]),
)
bodies: list[str] = []


@pytest.fixture(autouse=True)
def no_bodies() -> Iterator[None]:
    """Forget which bodies ran."""
    bodies.clear()
    yield
    bodies.clear()


@tool
def get_order(row: int, note: str = "") -> dict[str, Any]:
    """Look an order up."""
    bodies.append("get_order")
    return {"row": row, "state": "open", "note": note}


@tool
async def aget_order(row: int) -> str:
    """Look an order up, async."""
    bodies.append("aget_order")
    return f"order {row}"


def _both(row: int) -> str:
    bodies.append("sync")
    return f"sync {row}"


async def _aboth(row: int) -> str:
    bodies.append("async")
    return f"async {row}"


both = StructuredTool.from_function(_both, coroutine=_aboth, name="both", description="Both.")


class Plain(BaseTool):
    """A tool as a class, without its own async body."""

    name: str = "plain"
    description: str = "Plain."

    def _run(self, row: int) -> str:
        bodies.append("plain")
        return f"plain {row}"


class Chatty(Plain):
    """A tool whose body calls its base class's."""

    name: str = "chatty"

    def _run(self, row: int) -> str:
        bodies.append("chatty")
        return f"so {super()._run(row)}"


class Refusing(BaseTool):
    """A tool that fails; LangChain turns the failure into a message."""

    name: str = "refusing"
    description: str = "Refusing."
    handle_tool_error: Any = True

    def _run(self, row: int) -> str:
        bodies.append("refusing")
        raise ToolException(f"no order {row}")


class Shelf(retrievers.BaseRetriever):
    """A retriever."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        bodies.append("shelf")
        return [Document(page_content=f"about {query}", metadata={"rank": 1})]


def both_ways(use: Callable[[], Any]) -> tuple[Any, tuple[CallRecord, ...], Replayed]:
    """The result of a use, its recorded calls, and its replay, in which no body may run."""
    seen: list[Any] = []

    async def main() -> Any:
        made = use()
        seen.append(await made if asyncio.iscoroutine(made) else made)
        return seen[-1]

    recording = recorded(main, SEAMS)
    bodies.clear()
    replay = replayed(main, recording, seams=SEAMS)
    assert bodies == []
    assert replay.error is None
    assert replay.verdict["verdict"] == "identical", replay.verdict["divergences"]
    return seen[0], recording.calls, replay


USES: dict[str, Callable[[], Any]] = {
    "function": lambda: get_order.invoke({"row": 1}),
    "coroutine": lambda: aget_order.ainvoke({"row": 1}),
    "sync_of_both": lambda: both.invoke({"row": 1}),
    "async_of_both": lambda: both.ainvoke({"row": 1}),
    "class": lambda: Plain().invoke({"row": 1}),
    "class_async": lambda: Plain().ainvoke({"row": 1}),
    "inherited": lambda: Chatty().invoke({"row": 1}),
    "failing": lambda: Refusing().invoke({"row": 1}),
    "retriever": lambda: Shelf().invoke("x"),
    "retriever_async": lambda: Shelf().ainvoke("x"),
}


@pytest.mark.parametrize("use", USES)
def test_s50_each_sort_of_tool_is_one_call_and_replays_without_its_body(use: str) -> None:
    """However a tool or retriever is made and called, one call is recorded, and its replay gives the same."""
    seen, calls, replay = both_ways(USES[use])
    assert replay.result == seen
    assert len(calls) == 1
    assert calls[0].kind == ("retriever" if use.startswith("retriever") else "tool")


def test_call_id_and_arguments_are_recorded() -> None:
    """A model's tool call is recorded with its id and arguments, and LangChain makes the message."""
    asked = {"name": "get_order", "args": {"row": 7}, "id": "call_abc", "type": "tool_call"}
    seen, (call,), replay = both_ways(lambda: get_order.invoke(asked))
    assert call.call_id == "call_abc"
    assert json.loads(call.request)["arguments"]["row"] == 7
    assert (replay.result.tool_call_id, replay.result.content) == ("call_abc", seen.content)


def test_langchains_error_handling_runs_in_a_replay() -> None:
    """The record has the tool's exception; LangChain makes the message from it, both times."""
    seen, (call,), replay = both_ways(lambda: Refusing().invoke({"row": 3}))
    assert seen == replay.result == "no order 3"
    assert call.outcome == "error"
    assert "ToolException" in call.response


def test_callbacks_run_in_a_replay() -> None:
    """LangChain's callbacks see a served tool start and end like a live one."""
    told: list[str] = []

    class Handler(BaseCallbackHandler):
        def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
            told.append("start")

        def on_tool_end(self, output: Any, **kwargs: Any) -> None:
            told.append(f"end {output}")

    both_ways(lambda: Plain().invoke({"row": 2}, config={"callbacks": [Handler()]}))
    assert told == ["start", "end plain 2"] * 2


def test_injected_arguments_are_no_part_of_the_call() -> None:
    """Values that LangChain injects (a state, a store, a config) are not recorded, and need not be serialisable."""

    @tool
    def with_state(row: int, state: Annotated[Any, InjectedToolArg]) -> str:
        """Use a state."""
        return f"{row} {type(state).__name__}"

    _, (call,), _ = both_ways(lambda: with_state.invoke({"row": 1, "state": object()}))
    assert json.loads(call.request)["arguments"] == {"row": 1}


def test_tool_states_its_effect_in_its_metadata() -> None:
    """metadata={"effect": "read"} sets the call's effect; by default a tool may write."""
    reading = StructuredTool.from_function(_both, name="r", description="R.", metadata={"effect": "read"})
    other = StructuredTool.from_function(_both, name="w", description="W.", metadata={"effect": "guess"})
    _, calls, _ = both_ways(lambda: [reading.invoke({"row": 1}), other.invoke({"row": 1})])
    assert [c.effect for c in calls] == ["read", "write"]


def test_classes_that_come_later_are_covered() -> None:
    """A tool class that is defined after the seam was installed is a boundary too."""

    def use() -> Any:
        class Late(BaseTool):
            name: str = "late"
            description: str = "Late."

            def _run(self, row: int) -> str:
                bodies.append("late")
                return f"late {row}"

        return Late().invoke({"row": 1})

    seen, calls, replay = both_ways(use)
    assert (seen, [c.name for c in calls]) == (replay.result, ["late"])


def test_tools_are_themselves_again_afterwards() -> None:
    """Outside a run and after uninstall a tool's body is the original function."""
    before = vars(Plain)["_run"]
    hook = vars(BaseTool).get("__init_subclass__")
    both_ways(USES["class"])
    assert vars(Plain)["_run"] is before
    assert vars(BaseTool).get("__init_subclass__") is hook
    assert Plain().invoke({"row": 1}) == "plain 1"


def test_tools_in_parallel_keep_their_own_results() -> None:
    """Ten equal concurrent calls of one tool each get their own result."""
    count = iter(range(100))

    @tool
    async def draw() -> int:
        """Draw a number."""
        bodies.append("draw")
        return next(count)

    async def use() -> list[int]:
        return list(await asyncio.gather(*(draw.ainvoke({}) for _ in range(10))))

    seen, calls, replay = both_ways(use)
    assert replay.result == seen
    assert len({c.lane for c in calls}) == 10
