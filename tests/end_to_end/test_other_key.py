"""A replay on a machine with another redaction key: secrets and personal data in prompts have other tokens there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Replayed, Workplace
from support.units import COMMAND, prepare, serve

AGENT: Final = """
from groq import Groq

client = Groq()

def ask(text):
    messages = [{"role": "system", "content": "Support is at help@acme.example."}, {"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

print(ask("write to ann@acme.example"))
print(ask("and to bob@acme.example, then to ann@acme.example"))
print([("sent", "ann@acme.example")])
open("sent.txt", "w").write("ann@acme.example, bob@acme.example\\n" * 3)
"""
SERVED: Final = """
import spanreplay
from groq import Groq

@spanreplay.boundary("tool", name="look_up", effect="read")
def look_up(name):
    return ["ann@acme.example", "bob@acme.example"]

found = look_up("all")
asked = [{"role": "user", "content": f"write to {found[0]}"}]
print(Groq().chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content)
"""
HIDDEN: Final = "values that redaction hides"


def replay_elsewhere(workplace: Workplace, source: str) -> Replayed:
    """Replay as a machine does that has the recording and not its key, with this source of the agent."""
    agent = workplace.write("agent.py", source)
    (workplace.path / ".spanreplay" / "redact.key").unlink(missing_ok=True)
    return workplace.replay(agent, source=workplace.recording().run_id)


def test_s62_an_agent_whose_prompts_hold_personal_data_replays_without_the_key(
    provider: Provider, workplace: Workplace
) -> None:
    """Requests, output and a file match by which values are equal; the verdict says that no value was compared."""
    workplace.record(workplace.write("agent.py", AGENT))
    provider.stop()
    replayed = replay_elsewhere(workplace, AGENT)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["exact"] == 2
    assert HIDDEN in [each["what"] for each in replayed.verdict["not_compared"]]
    assert HIDDEN in replayed.stderr


@pytest.mark.parametrize(
    ("then", "now", "boundary"),
    [
        ("then to ann@", "then to bob@", "llm:openai.chat.completions"),
        ("then to ann@", "then to eve@", "llm:openai.chat.completions"),
        ("and to bob@acme.example", "and to nobody", "llm:openai.chat.completions"),
        ('"sent", "ann@', '"sent", "bob@', "process:stdout"),
        ('("ann@acme.example, bob@', '("bob@acme.example, ann@', "file:sent.txt"),
    ],
    ids=["another of them", "a new one", "none", "output", "file"],
)
@pytest.mark.sampled(2)
def test_s62_another_hidden_value_is_found_without_the_key(
    provider: Provider, workplace: Workplace, then: str, now: str, boundary: str
) -> None:
    """A value takes the place of one that the run told apart from it: that is a divergence at its place."""
    workplace.record(workplace.write("agent.py", AGENT))
    provider.stop()
    assert then in AGENT
    replayed = replay_elsewhere(workplace, AGENT.replace(then, now))
    assert replayed.verdict["verdict"] == "diverged"
    assert replayed.verdict["divergences"][0]["boundary"] == boundary, replayed.stderr


def test_s62_another_hidden_value_of_an_answer_is_found_without_the_key(
    provider: Provider, workplace: Workplace
) -> None:
    """The agent was served the recorded tokens: passing on another one is another request."""
    workplace.record(workplace.write("agent.py", SERVED))
    provider.stop()
    assert replay_elsewhere(workplace, SERVED).verdict["verdict"] == "identical"
    replayed = replay_elsewhere(workplace, SERVED.replace("found[0]", "found[1]"))
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")], replayed.stderr


APP: Final = """
from fastapi import FastAPI, Request
from groq import AsyncGroq

app = FastAPI()
client = AsyncGroq()

@app.post("/chat")
async def chat(request: Request):
    text = (await request.json())["text"]
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"asked": text, "word": "NOTE"}
"""


@pytest.mark.parametrize("note", ["note", "né"])
def test_s62_a_response_that_holds_personal_data_replays_without_the_key(
    provider: Provider, tmp_path: Path, note: str
) -> None:
    """A token is longer than the address that it hides, and so is the body: its length is none of the application's."""
    place = prepare(tmp_path, provider, APP.replace("NOTE", note))
    with serve(place) as server:
        httpx.post(f"{server.url}/chat", json={"text": "I am ann@acme.example"}, timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    (place.path / ".spanreplay" / "redact.key").unlink()
    (unit,) = server.units()
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    place.write("app.py", APP.replace("NOTE", "other"))
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.causes() == [("changed_call", "http:response")], replayed.stderr
