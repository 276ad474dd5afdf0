"""The cause that a report gives for a divergence: evidence by value, by place, or "unknown"."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.provider import Provider
from support.replaying import Replayed, Workplace

AGENT = """
import os, sys
from groq import Groq
import spanreplay
from prompts import SYSTEM

change = os.environ.get("CHANGE", "")


@spanreplay.boundary("tool", name="find_orders", effect="read")
def find_orders(customer):
    return [{"order": "ORDER-4711", "note": "late"}, {"order": "ORDER-0815", "note": "broken"}]


@spanreplay.boundary("tool", name="refund", effect="irreversible")
def refund(order):
    return "refunded"


client = Groq()
orders = find_orders("ACME")
chosen = orders[1 if change == "choice" else 0]["order"]
question = f"Say something {os.environ.get('TONE', 'friendly')} about {chosen}"
if len(sys.argv) > 1:
    question += f" in {sys.argv[1]}"
if change == "unknown":
    question += f" {os.getppid()}"
who = os.environ.get("WHO", "alice")
answer = client.chat.completions.create(
    model="gpt-x",
    user=who,
    messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
)
print(answer.choices[0].message.content)
if who == "mallory":
    refund(chosen)
"""


def git(place: Path, *args: str) -> str:
    """Run git in the agent's directory under a fixed author."""
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *settings, *args], cwd=place, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A recorded run of the agent in a repository; its provider has been stopped."""
    place = tmp_path_factory.mktemp("agent")
    with Provider() as provider:
        workplace = Workplace(place, provider.environ())
        workplace.write("agent.py", AGENT)
        workplace.write("prompts.py", 'GREETING = "hello"\nSYSTEM = "You are careful."\n')
        workplace.write(".gitignore", ".spanreplay/\n*.json\n__pycache__/\n")
        git(place, "init", "-q")
        git(place, "add", "-A")
        git(place, "commit", "-qm", "first")
        workplace.record("agent.py", "English")
    return workplace


def cause_of(replayed: Replayed) -> dict[str, Any]:
    """The one divergence that doesn't follow from another."""
    assert replayed.status == 3, replayed.stderr
    found: list[dict[str, Any]] = [d for d in replayed.verdict["divergences"] if not d["downstream"]]
    assert len(found) == 1, [d["message"] for d in found]
    return found[0]


def best(replayed: Replayed) -> tuple[str, str]:
    """(kind, strength) of the best evidence."""
    causes = cause_of(replayed)["causes"]
    return (causes[0]["kind"], causes[0]["strength"]) if causes else ("", "")


def test_n8_changed_line_of_code_is_blamed(recorded: Workplace) -> None:
    """The report names the line and the commit of a prompt changed in a commit."""
    recorded.write("prompts.py", 'GREETING = "hello"\nSYSTEM = "You are bold."\n')
    git(recorded.path, "commit", "-qam", "be bold")
    try:
        replayed = recorded.replay("agent.py", "English")
    finally:
        git(recorded.path, "reset", "-q", "--hard", "HEAD~1")
    cause = cause_of(replayed)
    assert (cause["part"], *best(replayed)) == ("prompt", "code", "value")
    assert "prompts.py:2" in cause["cause"]
    assert "be bold" in cause["cause"]
    assert cause["cause"] in replayed.stderr


def test_n8_uncommitted_change_is_said_to_be_one(recorded: Workplace) -> None:
    """A change in the working tree is named without a commit."""
    recorded.write("prompts.py", 'GREETING = "hello"\nSYSTEM = "You are timid."\n')
    try:
        replayed = recorded.replay("agent.py", "English")
    finally:
        git(recorded.path, "checkout", "-q", "prompts.py")
    assert "prompts.py:2 (not committed)" in cause_of(replayed)["cause"]
    assert replayed.verdict["code"]["changed_files"] == ["prompts.py"]


def test_n8_changed_tool_is_blamed_before_the_environment(recorded: Workplace) -> None:
    """If a live tool returns a different result, its changed function is named before variables that also differ."""
    recorded.write("agent.py", AGENT.replace('"note": "late"', '"note": "lost"'))
    try:
        replayed = recorded.replay("agent.py", "English", options=["--live", "tool:find_orders"], WHO="bob")
    finally:
        git(recorded.path, "checkout", "-q", "agent.py")
    cause = cause_of(replayed)
    assert (cause["kind"], cause["boundary"]) == ("output_changed", "tool:find_orders")
    assert best(replayed) == ("code", "value")
    assert "agent.py:12 (not committed)" in cause["cause"]
    assert "environment" in [c["kind"] for c in cause["causes"]]


def test_n8_changed_print_is_blamed(recorded: Workplace) -> None:
    """If all calls match and the output differs, the report names the line that prints the different text."""
    recorded.write("agent.py", AGENT.replace("print(answer", 'print("Dear customer,", answer'))
    try:
        replayed = recorded.replay("agent.py", "English")
    finally:
        git(recorded.path, "checkout", "-q", "agent.py")
    assert cause_of(replayed)["boundary"] == "process:stdout"
    assert best(replayed) == ("code", "value")
    line = next(number for number, text in enumerate(AGENT.split("\n"), 1) if text.startswith("print(answer"))
    assert f"agent.py:{line} (not committed)" in cause_of(replayed)["cause"]


OUTSIDE = """
import os
import spanreplay

ROUND = int(os.environ.get("ROUND", "1"))


@spanreplay.boundary("tool", name="price", effect="read")
def price(item):
    return 3


print(price("ACME"))
"""


def test_n8_changed_file_is_blamed_outside_git(workplace: Workplace) -> None:
    """Without a repository, the recorded hash of the tool's file shows that it has changed."""
    workplace.write("shop.py", OUTSIDE)
    workplace.record("shop.py")
    same = workplace.replay("shop.py", options=["--live", "tool:*"], ROUND="2")
    assert same.status == 0, same.stderr
    workplace.write("shop.py", OUTSIDE.replace("return 3", "return 4"))
    replayed = workplace.replay("shop.py", options=["--live", "tool:*"], ROUND="2")
    assert replayed.verdict["code"]["changed_files"] == ["shop.py"]
    assert best(replayed) == ("code", "place")
    assert cause_of(replayed)["cause"] == "shop.py has changed since the recording"
    assert "cause shop.py has changed since the recording" in " ".join(replayed.stderr.split())


LATE = """
import sys
import spanreplay

ask = spanreplay.boundary("tool", name="ask", effect="read")(len)
try:
    ask(sys.argv[1])
except BaseException:
    import reporter
    raise
"""


def test_n8_code_that_only_a_stopped_replay_loads_has_not_changed(workplace: Workplace) -> None:
    """A module that the program imports because its replay was stopped, e.g. to report it, is no changed file."""
    workplace.write("reporter.py", "")
    agent = workplace.write("agent.py", LATE)
    workplace.record(agent, "one")
    replayed = workplace.replay(agent, "other")
    assert replayed.causes() == [("changed_call", "tool:ask")]
    assert replayed.verdict["code"]["changed_files"] == []
    workplace.write("agent.py", LATE.replace("import sys", "import sys, reporter"))
    replayed = workplace.replay(agent, "other")
    assert replayed.verdict["code"]["changed_files"] == ["agent.py", "reporter.py"]
    assert "agent.py, reporter.py have changed since the recording" in str(cause_of(replayed)["causes"])


def test_n8_value_of_an_earlier_output_is_found(recorded: Workplace) -> None:
    """If the agent now takes another value from a recorded answer, the report names the call that gave it."""
    replayed = recorded.replay("agent.py", "English", CHANGE="choice")
    assert best(replayed) == ("upstream_output", "value")
    assert "'ORDER-0815' is in the output of call" in cause_of(replayed)["cause"]
    assert "tool:find_orders" in cause_of(replayed)["cause"]


def test_n8_environment_variable_is_named(recorded: Workplace) -> None:
    """If changed text comes from an environment variable whose value has changed, the variable is the cause."""
    replayed = recorded.replay("agent.py", "English", TONE="sarcastic")
    assert best(replayed) == ("environment", "value")
    assert "TONE" in cause_of(replayed)["cause"]


def test_n8_argument_is_named(recorded: Workplace) -> None:
    """If changed text comes from the command line, the command line is the cause."""
    assert best(recorded.replay("agent.py", "Klingon")) == ("argument", "value")


def test_n8_unknown_is_said_to_be_unknown(recorded: Workplace) -> None:
    """A value found nowhere gets no cause by value, and none is invented."""
    replayed = recorded.replay("agent.py", "English", CHANGE="unknown")
    assert all(c["strength"] == "beside" for c in cause_of(replayed)["causes"] if "causes" in cause_of(replayed))
    assert "perhaps" in replayed.stderr or "unknown" in replayed.stderr


def test_s35_n9_ignored_field_that_decides_a_branch_is_reported(recorded: Workplace) -> None:
    """A difference in a field outside every key is no divergence, but is shown with its span where one follows."""
    replayed = recorded.replay("agent.py", "English", WHO="mallory")
    cause = cause_of(replayed)
    assert (cause["kind"], cause["boundary"]) == ("extra_call", "tool:refund")
    (ignored,) = replayed.verdict["ignored_diffs"]
    assert [(d["path"], d["recorded"], d["now"]) for d in ignored["diff"]] == [("user", "alice", "mallory")]
    llm = next(c for c in recorded.recording().calls if c.kind == "llm")
    assert ignored["recorded_span_id"] == llm.span_id
    assert "ignored_field" not in [c["kind"] for c in cause["causes"]]  # an ignored field is never a cause
    assert "'alice' → 'mallory'" in replayed.stderr
    harmless = recorded.replay("agent.py", "English", WHO="bob")
    assert (harmless.status, harmless.verdict["counts"]["ignored_diffs"]) == (0, 1)


CHAT = """
import os
from groq import Groq

client = Groq()
messages = []
for turn in range(1, 13):
    text = f"question {turn}"
    if turn == 1 and os.environ.get("CHANGE"):
        text = "another question 1"
    messages.append({"role": "user", "content": text})
    answer = client.chat.completions.create(model="gpt-x", messages=messages)
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
"""


@pytest.mark.parametrize("on_change", ["serve", "stop"])
def test_s56_changed_turn_is_the_one_cause(on_change: str, provider: Provider, workplace: Workplace) -> None:
    """If turn 1 of a chat of 12 turns changes, it is the one cause; later calls add no cause."""
    workplace.write("chat.py", CHAT)
    workplace.record("chat.py")
    provider.stop()
    replayed = workplace.replay("chat.py", options=["--on-change", on_change], CHANGE="1")
    cause = cause_of(replayed)
    assert (cause["kind"], cause["turn"], cause["seq"], cause["part"]) == ("changed_call", 1, 1, "prompt")
    assert cause["context"] == [{"index": 0, "name": "user", "change": "changed"}]
    later = [d for d in replayed.verdict["divergences"] if d["downstream"]]
    assert len(later) == 11
    assert {d["downstream_of"] for d in later} == {1}
    if on_change == "serve":
        assert all(d["turn"] == 1 and "context" not in d for d in later)
        assert all("turn 1 brought that; this call adds no other change" in d["message"] for d in later)
        assert "11 further calls are downstream of it" in replayed.stderr


TOOLS = """
import json
from groq import Groq
import spanreplay


@spanreplay.boundary("tool", name="look", effect="read")
def look(q):
    return f"nothing about {q}"


client = Groq()
schema = {"type": "object", "properties": {"q": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
messages = [{"role": "user", "content": 'use tool look with {"q": "a"} and use tool look with {"q": "b"}'}]
answer = client.chat.completions.create(model="gpt-x", messages=messages, tools=tools).choices[0].message
messages.append(answer.model_dump(exclude_none=True))
for call in answer.tool_calls:
    content = look(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
client.chat.completions.create(model="gpt-x", messages=messages, tools=tools)
"""


def test_n5_random_ids_of_a_live_model_change_no_key(provider: Provider, workplace: Workplace) -> None:
    """A live model draws new tool-call ids: the next request still matches the recorded one, and no output differs."""
    workplace.write("tools.py", TOOLS)
    workplace.record("tools.py")
    first, second = (c for c in workplace.recording().calls if c.kind == "llm")
    replayed = workplace.replay("tools.py", options=["--live", "llm:*"])
    kinds = [(d["kind"], d["boundary"]) for d in replayed.verdict["divergences"]]
    assert kinds == [("output_changed", "llm:openai.chat.completions")]  # the text of the last answer is random
    assert replayed.verdict["divergences"][0]["recorded_span_id"] == second.span_id
    assert replayed.verdict["counts"]["changed"] == 0
    assert first.span_id != second.span_id


PROMPTED = """
from pathlib import Path
from groq import Groq

system = Path("prompts/system.txt").read_text()
messages = [{"role": "system", "content": system}, {"role": "user", "content": "Where is my order?"}]
print(Groq().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
"""


@pytest.mark.parametrize("is_in_git", [False, True], ids=["plain folder", "git"])
def test_s65_a_prompt_in_a_file_that_has_changed_is_the_cause(
    is_in_git: bool, provider: Provider, tmp_path: Path
) -> None:
    """A changed file that the agent reads is named; if git tracks it, the changed line is named."""
    place = Workplace(tmp_path, provider.environ())
    place.write("agent.py", PROMPTED)
    (tmp_path / "prompts").mkdir()
    prompt = tmp_path / "prompts" / "system.txt"
    prompt.write_text("Answer briefly.\nNever promise a refund.\n")
    if is_in_git:
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", "prompts")
    place.record("agent.py")
    prompt.write_text("Answer briefly.\nAlways promise a refund.\n")
    replayed = place.replay("agent.py", TONE="other")
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")]
    (cause,) = replayed.verdict["divergences"]
    named = (
        "in prompts/system.txt:2 (not committed)" if is_in_git else "'Always' is in prompts/system.txt, which the agent"
    )
    assert named in cause["cause"], cause
    assert sum("system.txt" in each["evidence"] for each in cause["causes"]) == 1


def test_the_recorded_command_line_is_told(tmp_path: Path) -> None:
    """A replay with another command line says with which one the run was recorded, `python -m` included."""
    workplace = Workplace(tmp_path)
    source = "import sys\nimport spanreplay\n\nask = spanreplay.boundary('tool', name='ask')(len)\nask(sys.argv[1:])\n"
    workplace.write("bot.py", source)
    workplace.record("-m", "bot", "--name", "a b")
    replayed = workplace.replay("-m", "bot")
    assert replayed.verdict["verdict"] == "diverged"
    assert "the command line has changed; it was: -m bot --name 'a b'" in " ".join(replayed.stderr.split())
