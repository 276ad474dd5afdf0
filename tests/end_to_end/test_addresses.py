"""Object addresses differ in each process and mean nothing: a replay treats the program as unchanged."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

AGENT = """
import spanreplay


class Basket:
    pass


@spanreplay.boundary("llm", name="ask")
def ask(messages):
    return f"seen {messages}"


tools = [Basket(), Basket(), ask]
answer = ask([{"role": "system", "content": f"tools: {tools}"}, {"role": "user", "content": "buy apples"}])
print(object(), answer)
with open("out.txt", "w") as out:
    out.write(f"{tools[1]} bought apples\\n")
"""


def test_addresses_of_objects_are_no_difference(workplace: Workplace) -> None:
    """Object addresses are ignored in a prompt, on standard output and in a written file."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    replayed = workplace.replay("agent.py")
    assert replayed.verdict["verdict"] == "identical", replayed.verdict["divergences"]
    assert replayed.verdict["counts"]["exact"] == 1


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("buy apples", "buy pears", ("changed_call", "llm:ask")),
        ("print(object(),", "print(object(), object(),", ("output_changed", "process:stdout")),
        ("bought apples", "sold apples", ("file_changed", "file:out.txt")),
    ],
    ids=["prompt", "output", "file"],
)
def test_a_change_beside_an_address_is_found(workplace: Workplace, old: str, new: str, cause: tuple[str, str]) -> None:
    """The report names only the changed text, not the address beside it."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    workplace.write("agent.py", AGENT.replace(old, new))
    replayed = workplace.replay("agent.py")
    assert replayed.causes() == [cause]
    if cause[0] == "changed_call":
        (found,) = replayed.verdict["divergences"][0]["diff"]
        assert found["path"] == "arguments.messages[1].content"
