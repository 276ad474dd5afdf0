"""`assert_trajectory`: the calls of a recorded or replayed run, compared with a list, without asking a model."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import spanreplay
from spanreplay.activate.blocks import RecordBlock
from spanreplay.model.errors import ConfigError
from spanreplay.recording.bundle import load_file
from spanreplay.testing import ANYTHING, Call, Expected, MadeCall, assert_trajectory
from support.nested_pytest import OURS
from support.provider import Provider

pytest_plugins = ["pytester"]

Made = tuple[str, dict[str, Any]]
REFUND: Final = {"order": 17, "amount": 19}
EXPECTED: Final[list[Expected]] = [
    Call("get_order", {"order": 17}),
    "check_policy",
    Call("refund", REFUND),
    Call("notify", {"to": "ada@example.com"}),
]
RIGHT: Final[list[Made]] = [
    ("get_order", {"order": 17}),
    ("check_policy", {}),
    ("refund", REFUND),
    ("notify", {"to": "ada@example.com"}),
]
ORDER, POLICY, PAY, TELL = RIGHT
READ_AGAIN: Final = ("get_order", {"order": 18})
MODES: Final = ("exact", "in_order", "any_order", "subset", "superset")
MUTATED: Final[dict[str, tuple[list[Made], str]]] = {
    "unchanged": (RIGHT, "exact in_order any_order subset superset"),
    "two swapped": ([ORDER, PAY, POLICY, TELL], "any_order subset superset"),
    "last dropped": ([ORDER, POLICY, PAY], "subset"),
    "first dropped": ([POLICY, PAY, TELL], "subset"),
    "one more in between": ([ORDER, READ_AGAIN, POLICY, PAY, TELL], "in_order superset"),
    "one twice": ([ORDER, POLICY, PAY, PAY, TELL], "in_order superset"),
    "another argument": ([ORDER, POLICY, ("refund", {"order": 17, "amount": 190}), TELL], ""),
    "another tool": ([ORDER, POLICY, ("delete_order", {"order": 17}), TELL], ""),
    "reversed, and one more": ([*reversed(RIGHT), READ_AGAIN], "superset"),
    "nothing": ([], "subset"),
}
"""The name of a mutated trajectory → its calls, and the modes in which it passes."""


@spanreplay.boundary("tool", name="get_order", effect="read")
def _get_order(order: int) -> dict[str, bool]:
    return {"ok": True}


@spanreplay.boundary("tool", name="check_policy", effect="read")
def _check_policy() -> dict[str, bool]:
    return {"ok": True}


@spanreplay.boundary("tool", name="refund")
def _refund(order: int, amount: int) -> dict[str, bool]:
    return {"ok": True}


@spanreplay.boundary("tool", name="delete_order", effect="irreversible")
def _delete_order(order: int) -> dict[str, bool]:
    return {"ok": True}


@spanreplay.boundary("tool", name="notify")
def _notify(to: str) -> dict[str, bool]:
    return {"ok": True}


@spanreplay.boundary("tool", name="get_price", effect="read")
def _get_price() -> int:
    return 19


TOOLS: Final[dict[str, Callable[..., Any]]] = {
    "get_order": _get_order,
    "check_policy": _check_policy,
    "refund": _refund,
    "delete_order": _delete_order,
    "notify": _notify,
    "get_price": _get_price,
}


def _record(folder: Path, calls: list[Made]) -> RecordBlock:
    with spanreplay.record(name="agent", directory=folder) as block:
        for name, arguments in calls:
            TOOLS[name](**arguments)
    return block


@pytest.mark.parametrize("mutation", MUTATED)
def test_s31_mutated_trajectories_are_classified(tmp_path: Path, mutation: str) -> None:
    """Ten trajectories, made by hand, pass in the modes in which they should, and in no other."""
    assert len(MUTATED) == 10
    calls, passing = MUTATED[mutation]
    block = _record(tmp_path, calls)
    found = [mode for mode in MODES if _passes(block, mode)]
    assert found == passing.split()


def _passes(run: Any, mode: Any) -> bool:
    try:
        assert_trajectory(run, EXPECTED, mode)
    except AssertionError:
        return False
    return True


def test_s31_a_failure_shows_both_lists_and_the_first_difference(tmp_path: Path) -> None:
    """The message names the call and the argument, and marks each pair that is wrong."""
    calls = [ORDER, ("refund", {"order": 17, "amount": 190}), READ_AGAIN, TELL]
    with pytest.raises(AssertionError) as failure:
        assert_trajectory(_record(tmp_path, calls), EXPECTED)
    told = re.sub(r"rdx-[a-z]+", "rdx-TOKEN", str(failure.value))  # another one in each directory
    assert told.splitlines() == [
        "the run's calls are not the expected ones (mode exact: these calls, in this order, and no others)",
        "  first difference: check_policy was not made",
        "    expected                          made",
        "    get_order(order=17, …)            get_order(order=17)  [call 1]",
        "  > check_policy                      (not made)",
        "  > refund(order=17, amount=19, …)    refund(order=17, amount=190)  [call 2]",
        "  > (not expected)                    get_order(order=18)  [call 3]",
        "    notify(to='ada@example.com', …)   notify(to='rdx-TOKEN@example.com')  [call 4]",
    ]


def test_s31_custom_matchers_and_a_custom_mode(tmp_path: Path) -> None:
    """Types, patterns, functions, predicates of whole calls and functions as mode decide."""
    block = _record(tmp_path, RIGHT)
    is_small = {"amount": lambda amount: amount < 20, "order": int}
    assert_trajectory(
        block,
        [
            "get_*",
            lambda call: call.name.startswith("check"),
            Call("refund", is_small, result={"ok": True}, is_closed=True),
            Call("notify", {"to": re.compile("@example")}),
        ],
    )
    assert_trajectory(block, [Call("refund", {"order": ANYTHING})], "in_order")
    wrongs: list[Expected] = [
        Call("refund", {"order": 17}, is_closed=True),
        Call("refund", {"order": True}),
        Call("refund", {"order": str}),
        Call("refund", {"reason": ANYTHING}),
        Call("refund", result={"ok": False}),
    ]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            assert_trajectory(block, [wrong], "in_order")

    def at_most_four(made: Sequence[MadeCall], expected: Sequence[Any]) -> bool | str:
        return True if len(made) <= len(expected) else f"{len(made)} calls"

    assert_trajectory(block, EXPECTED, at_most_four)
    with pytest.raises(AssertionError, match="not as at_most_four demands: 4 calls"):
        assert_trajectory(block, EXPECTED[:3], at_most_four)
    with pytest.raises(ConfigError, match="returned NoneType"):
        assert_trajectory(block, EXPECTED, lambda made, expected: None)  # type: ignore[arg-type,return-value]  # the mistake


def test_s31_a_pattern_leaves_the_call_that_another_one_needs(tmp_path: Path) -> None:
    """`get_*` and `get_order` match get_order and get_price in any order, whichever is written first."""
    block = _record(tmp_path, [("get_order", {"order": 1}), ("get_price", {})])
    assert_trajectory(block, ["get_*", "get_order"], "any_order")
    assert_trajectory(block, ["get_order", "get_*"], "any_order")
    with pytest.raises(AssertionError):
        assert_trajectory(block, ["get_price", "get_price"], "any_order")


def test_s31_a_run_can_be_named_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running block, a file and a run id give the same calls, and what has no calls is refused with its reason."""
    monkeypatch.setenv("SPANREPLAY_DIR", str(tmp_path))
    with spanreplay.record(name="agent", directory=tmp_path) as block:
        assert_trajectory(block, [])
        TOOLS["get_order"](order=17)
        assert_trajectory(block, ["get_order"])
        TOOLS["notify"](to="ada@example.com")
    file = block.save(tmp_path / "agent.replay")
    expected: list[Expected] = ["get_order", Call("notify", {"to": "ada@example.com"})]
    for run in (block, file, str(file), block.run_id, load_file(file)):
        assert_trajectory(run, expected)
    with spanreplay.replay(file) as replayed:
        TOOLS["get_order"](order=17)
        assert_trajectory(replayed, ["get_order"])
        TOOLS["notify"](to="ada@example.com")
    assert_trajectory(replayed, expected)
    assert replayed.verdict()["verdict"] == "identical"
    with pytest.raises(ConfigError, match="a verdict does not hold the calls"):
        assert_trajectory(replayed.verdict(), expected)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigError, match="int has no calls"):
        assert_trajectory(17, expected)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigError, match="mode='in order' is not one of"):
        assert_trajectory(file, expected, "in order")  # type: ignore[arg-type]  # the mistake
    (tmp_path / "redact.key").unlink()
    with pytest.raises(AssertionError, match="hidden by redaction"):
        assert_trajectory(file, expected)


def test_s31_tools_of_an_mcp_server_are_tools(tmp_path: Path) -> None:
    """Calls of a real MCP server's tools count with their own arguments, once if a tool only passes them on."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server_time"])

    async def work() -> None:
        with Path(os.devnull).open("w") as errors:
            async with stdio_client(server, errlog=errors) as (read, write), ClientSession(read, write) as session:
                await session.initialize()
                await session.list_tools()

                @spanreplay.boundary("tool", name="get_current_time")
                async def get_current_time(zone: str) -> None:
                    await session.call_tool("get_current_time", {"timezone": zone})

                await session.call_tool("get_current_time", {"timezone": "Asia/Tokyo"})
                await get_current_time("Europe/Paris")

    with spanreplay.record(name="agent", directory=tmp_path) as block:
        asyncio.run(work())
    tokyo, paris = (
        Call("get_current_time", {"timezone": "Asia/Tokyo"}),
        Call("get_current_time", {"zone": "Europe/Paris"}),
    )
    assert_trajectory(block, [tokyo, paris])
    assert_trajectory(block, ["mcp:get_*"], "superset")
    assert_trajectory(block, ["subprocess.*", "get_*", "get_*"])  # the server is a program


AGENT: Final = """
import json, os
import groq, pytest, spanreplay
from spanreplay.testing import Call, assert_trajectory

TOOL = {"type": "function", "function": {"name": "refund", "parameters": {"type": "object", "properties": {}}}}

def ask(text):
    with groq.Groq(max_retries=0) as client:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL]).choices[0].message

@spanreplay.boundary("tool")
def refund(order, amount):
    return {"ok": True}

def run_agent(is_told=True):
    for call in ask('use tool refund with {"order": 17, "amount": 19}').tool_calls:
        refund(**json.loads(call.function.arguments))
    return ask("tell the customer") if is_told else None
"""
TESTS: Final = """
@pytest.mark.replay
def test_refunds_once(replay_session):
    run_agent()
    assert_trajectory(replay_session, ["llm", Call("refund", {"order": 17, "amount": 19}), "llm"])
    assert_trajectory(replay_session, [Call("refund", {"order": 17})], of="asked")

@pytest.mark.replay
def test_is_wrong(replay_session):
    run_agent(is_told=False)
    expected = AMOUNTS[replay_session.mode]
    assert_trajectory(replay_session, [Call("refund", {"amount": expected})], "in_order")

AMOUNTS = {"record": 19, "replay": 20, "off": 0}
"""


def test_s31_s29_a_replayed_test_asserts_its_trajectory(pytester: pytest.Pytester, provider: Provider) -> None:
    """A marked test asserts the same calls while it is recorded, and in its replay, without provider and network."""
    pytester.makepyfile(AGENT + TESTS)
    recorded = pytester.runpytest_subprocess(*OURS, "--replay-mode=record", timeout=600)
    recorded.assert_outcomes(passed=2)
    provider.stop()
    result = pytester.runpytest_subprocess(*OURS, "--replay-strict", timeout=600)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the run's calls are not the expected ones (mode in_order*",
            "*first difference: call 2, refund: amount: expected 20, found 19*",
            "*> refund(amount=20, …)*refund(order=17, amount=19)*call 2*",
        ]
    )
    with Provider() as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GROQ_BASE_URL", other.url)
        off = pytester.runpytest_subprocess(*OURS, "--replay-mode=off", "-rs", timeout=600)
    off.assert_outcomes(skipped=2)
    off.stdout.fnmatch_lines(["*nothing is known about the test's calls*"])
