"""`spanreplay diff` of two runs that differ in one planted change: it names the call and the change's origin."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace

AGENT: Final = """
import datetime, json, os, random, sys
from groq import Groq
import spanreplay

def world(name):
    with open("world.json") as file:
        return json.load(file)[name]

@spanreplay.boundary("tool", effect="read")
def find_customer(name):
    return {"id": world("id"), "tier": world("tier")}

@spanreplay.boundary("retriever", effect="read")
def search(question):
    return world("documents")

@spanreplay.boundary("tool", effect="read")
def count_orders(customer):
    if world("orders") is None:
        raise LookupError("no such customer")
    return world("orders")

@spanreplay.boundary("human", effect="read")
def approve(question):
    return world("approval")

@spanreplay.boundary("tool", effect="read")
def list_pages(customer):
    return world("pages")

@spanreplay.boundary("tool", effect="read")
def fetch_page(page):
    return f"page {page}"

@spanreplay.boundary("tool")
def refund(customer):
    return "refunded"

@spanreplay.boundary("tool")
def save(text):
    return "saved"

SYSTEM, TEMPERATURE = "You refund orders.", 0.25

def ask(text):
    asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    model = os.environ.get("MODEL", "gpt-x")
    made = Groq().chat.completions.create(model=model, temperature=TEMPERATURE, messages=asked)
    return made.choices[0].message.content

name = sys.argv[1]
customer = find_customer(name)
documents = [each["text"] for each in search(f"refunds for {customer['tier']}")]
orders = count_orders(customer["id"])
words = [f"{name} has {orders} orders", *documents, os.environ.get("TONE", "")]
if os.environ.get("DATED"):
    words.append(f"It is {datetime.datetime.now()}")
if os.environ.get("TICKET"):
    words.append(f"Ticket {random.random()}")
if os.environ.get("ASKED"):
    words.append(input("What else? "))
plan = ask(". ".join(words))
for page in range(list_pages(customer["id"])):
    fetch_page(page)
if approve("Refund?") == "yes":
    refund(customer["id"])
save(plan)
print("done")
"""
WORLD: Final = {
    "id": "customer-17",
    "tier": "gold",
    "orders": 3,
    "approval": "yes",
    "pages": 1,
    "documents": [{"id": "doc-1", "text": "Gold refunds take a day"}],
}
ENDS: Final = 'save(plan)\nprint("done")\n'
ACTING: Final = 'if approve("Refund?") == "yes":\n    refund(customer["id"])\n'
LLM: Final = "llm:openai.chat.completions"


@dataclass(frozen=True)
class Plant:
    """One difference planted in the second run, and what the diff must report."""

    change: str
    boundary: str
    cause: str
    evidence: str
    world: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, str] = ("", "")
    both: Mapping[str, str] = field(default_factory=dict)
    """Variables set for both runs."""
    name: str = "ann"
    stdin: str = ""
    status: int = 0
    part: str = ""


PLANTS: Final = {
    "a tool's answer": Plant("changed", LLM, "upstream_output", "A got '3', B got '12'", world={"orders": 12}),
    "a tool's answer in a query": Plant(
        *("changed", "retriever:search", "upstream_output", "A got 'gold', B got 'tin'"), world={"tier": "tin"}
    ),
    "a tool's answer in an argument": Plant(
        *("changed", "tool:count_orders", "upstream_output", "call 1 (tool:find_customer)"), world={"id": "customer-18"}
    ),
    "a retrieved document": Plant(
        *("changed", LLM, "upstream_output", "call 2 (retriever:search)"),
        world={"documents": [{"id": "doc-1", "text": "Gold refunds take a week"}]},
    ),
    "one more document": Plant(
        *("changed", LLM, "upstream_output", "call 2 (retriever:search)"),
        world={"documents": [*WORLD["documents"], {"id": "doc-2", "text": "Ask a manager"}]},  # type: ignore[misc]
    ),
    "the command line": Plant("changed", "tool:find_customer", "argument", "'robert' is in the command", name="robert"),
    "a variable": Plant(
        "changed", LLM, "environment", "TONE is nothing in A, 'be kind' in B", environ={"TONE": "be kind"}
    ),
    "the model": Plant(
        *("changed", LLM, "environment", "MODEL is nothing in A, 'gpt-y' in B"),
        environ={"MODEL": "gpt-y"},
        part="model",
    ),
    "the prompt in the code": Plant(
        *("changed", LLM, "code", "agent.py"), code=("You refund orders.", "You refund no orders."), part="prompt"
    ),
    "the sampler in the code": Plant("changed", LLM, "code", "agent.py", code=(", 0.25", ", 0.75"), part="sampler"),
    "a refusal": Plant(
        *("dropped", "tool:refund", "upstream_output", "(human:approve) answered the same request differently"),
        world={"approval": "no"},
    ),
    "a failure": Plant(
        *("dropped", LLM, "upstream_output", "call 3 (tool:count_orders) answered the same request"),
        world={"orders": None},
        status=1,
    ),
    "a longer loop": Plant(
        *("added", "tool:fetch_page", "upstream_output", "call 5 (tool:list_pages) before it"), world={"pages": 30}
    ),
    "another order": Plant(
        *("moved", "tool:save", "code", "agent.py"),
        code=(ACTING + "save(plan)\n", "save(plan)\n" + ACTING),
    ),
    "one more call in the code": Plant("added", "tool:refund", "code", "agent.py", code=(ENDS, ENDS + "refund('x')\n")),
    "one call less in the code": Plant("dropped", "tool:save", "code", "agent.py", code=("save(plan)", "pass")),
    "the time": Plant("changed", LLM, "read", "datetime.now", both={"DATED": "yes"}, part="clock"),
    "a random number": Plant("changed", LLM, "read", "random", both={"TICKET": "yes"}),
    "a person's answer": Plant(
        *("changed", LLM, "upstream_output", "A got 'nothing', B got 'a discount'"),
        both={"ASKED": "yes"},
        stdin="a discount",
    ),
    "what is printed": Plant("", "", "code", "agent.py", code=('"done"', '"over"')),
}


class Shop(Workplace):
    """The agent's folder."""

    def run_agent(self, plant: Plant, *, is_second: bool) -> str:
        """Record the agent, unchanged or with the planted change; return the run's id."""
        self.write("agent.py", AGENT.replace(*plant.code) if is_second and plant.code[0] else AGENT)
        self.write("world.json", json.dumps({**WORLD, **(plant.world if is_second else {})}))
        done = subprocess.run(
            [
                self.python.parent / "opentelemetry-instrument",
                self.python,
                "agent.py",
                plant.name if is_second else "ann",
            ],
            cwd=self.path,
            env={**self.environ, **plant.both, **(plant.environ if is_second else {})},
            input=plant.stdin if is_second else "nothing",
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == (plant.status if is_second else 0), done.stderr
        return self.recordings()[-1].run_id

    def diff(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit status and JSON of `spanreplay diff`."""
        done = self.run("diff", *arguments, "--json")
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, found


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """A folder whose models give equal requests equal answers."""
    with Provider(is_repeatable=True) as provider:
        yield Shop(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.sampled(7)
def test_w1_s70_first_call_that_differs_and_its_origin_are_named(name: str, shop: Shop) -> None:
    """This holds for each of the 20 planted pairs."""
    plant = PLANTS[name]
    runs = [shop.run_agent(plant, is_second=is_second) for is_second in (False, True)]
    status, found = shop.diff(*runs)
    assert status == 3
    first = found["first"] or {"change": "", "boundary": ""}
    assert (first["change"], first["boundary"]) == (plant.change, plant.boundary), found
    assert found["causes"][0]["kind"] == plant.cause, found["causes"]
    assert plant.evidence in found["causes"][0]["evidence"], found["causes"]
    assert first.get("part", "") == plant.part or not plant.part
    assert shop.diff(runs[0], runs[0])[0] == 0


def test_w1_a_run_and_a_replay_of_it_are_compared(shop: Shop) -> None:
    """A replay is a run too: equal if nothing has changed, else they differ where its verdict says."""
    run = shop.run_agent(PLANTS["a tool's answer"], is_second=False)
    same = shop.replay("agent.py", "ann", source=run)
    assert same.status == 0, same.stderr
    assert shop.diff(run, same.verdict["replay_run_id"])[0] == 0
    shop.write("agent.py", AGENT.replace("You refund orders.", "You refund no orders."))
    changed = shop.replay("agent.py", "ann", source=run)
    assert changed.causes() == [("changed_call", LLM)]
    status, found = shop.diff(run, changed.verdict["replay_run_id"])
    assert status == 3
    assert (found["first"]["change"], found["first"]["boundary"]) == ("changed", LLM)
    assert "agent.py" in found["causes"][0]["evidence"]
