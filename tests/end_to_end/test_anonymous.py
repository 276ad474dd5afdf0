"""`spanreplay export --anonymous`: who took part is nowhere in the file, and the run replays from it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Final

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from spanreplay.recording.bundle import load_file
from spanreplay.redact.sealed_values import SEALED
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import COMMAND, prepare, serve

AGENT: Final = """
import sys
import spanreplay
from groq import Groq

client = Groq()

@spanreplay.boundary("tool", name="find_customer", effect="read")
def find_customer(number):
    note = '{"met": "Ann Miller and Bob"}'
    return {"name": "Ann Miller", "city": "Oslo", "note": note, "orders": [1, 2], "mail": "ann@acme.example"}

def ask(text, **more):
    messages = [{"role": "system", "content": "You work for Acme Bank."}, {"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-x", messages=messages, **more)

found = find_customer(7)
print(ask(f"Write to {found['name']} in {found['city']}.").choices[0].message.content)
for chunk in ask("Greet Bob, and Ann Miller too", stream=True):
    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="")
print([found["name"], "Bob"])
open("letter.txt", "w").write("Dear Bob\\n")
"""
HIDE: Final = ("--hide", "Ann Miller", "--hide", "Bob", "--hide", "Acme Bank")


def _export(workplace: Workplace, *options: str) -> Path:
    done = workplace.run("export", "latest", "--anonymous", *options, "-o", "shared.replay")
    assert done.returncode == 0, done.stderr
    return workplace.path / "shared.replay"


def _everything(path: Path) -> str:
    """All that a stranger can read in a `.replay` file."""
    with zipfile.ZipFile(path) as archive:
        return "\n".join(archive.read(name).decode("utf-8", "replace") for name in archive.namelist())


def test_s44_an_anonymous_export_names_nobody_and_replays(provider: Provider, workplace: Workplace) -> None:
    """Equal names have equal pseudonyms everywhere; the agent, whose code and prompts have the names, is identical."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, SPANREPLAY_USER_ID="ann.the.user")
    provider.stop()
    shared = _export(workplace, *HIDE, "--hide-field", "city", "--pseudonyms", "names.json")
    text = _everything(shared)
    for name in ("Ann Miller", "Bob", "Acme Bank", "Oslo", "ann.the.user"):
        assert name not in text
    names = json.loads((workplace.path / "names.json").read_text(encoding="utf-8"))
    assert {"Ann Miller", "Bob", "Acme Bank", "Oslo"} <= set(names)
    assert names["Bob"] in text
    made = load_file(shared)
    answer = json.loads(made.calls[0].response)["value"]
    assert (answer["name"], answer["city"]) == (names["Ann Miller"], names["Oslo"])
    assert json.loads(answer["note"])["met"] == f"{names['Ann Miller']} and {names['Bob']}"
    assert f"Write to {names['Ann Miller']} in {names['Oslo']}." in made.calls[1].request
    assert made.run_id != workplace.recording().run_id
    assert workplace.recording().root.manifest["root"] not in text
    replayed = workplace.replay(agent, source=str(shared))
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert "values that redaction hides" in [each["what"] for each in replayed.verdict["not_compared"]]
    assert "anonymous: " in replayed.stderr
    assert "it was recorded without a signing key" in workplace.run("verify", str(shared)).stdout


def test_s44_an_anonymous_export_lacks_what_a_name_can_be_guessed_from(
    provider: Provider, workplace: Workplace
) -> None:
    """Sealed values, digests of changed requests, the signature and its root hash stay with the original."""
    key = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (workplace.path / "signing.pem").write_bytes(key)
    workplace.record(workplace.write("agent.py", AGENT), SPANREPLAY_SIGNING_KEY="signing.pem")
    original, made = workplace.recording(), load_file(_export(workplace, *HIDE))
    assert any(SEALED in call.meta for call in original.calls)
    assert original.root.manifest["signature"]
    changed = [(old, new) for old, new in zip(original.calls, made.calls, strict=True) if old.request != new.request]
    assert len(changed) == 2
    assert all(old.digests and not new.digests and old.key != new.key for old, new in changed)
    assert not any(SEALED in call.meta for call in made.calls)
    assert "signature" not in made.root.manifest


@pytest.mark.parametrize(
    ("then", "now", "boundary"),
    [
        ("Greet Bob, and", "Greet Ann Miller, and", "llm:openai.chat.completions"),
        ("Greet Bob, and", "Praise Bob, and", "llm:openai.chat.completions"),
        ('"Bob"])', '"Eve"])', "process:stdout"),
        ("Dear Bob", "Dear Ann Miller", "file:letter.txt"),
    ],
    ids=["another of them", "other words", "output", "file"],
)
@pytest.mark.sampled(2)
def test_s44_another_person_is_found_in_an_anonymous_export(
    provider: Provider, workplace: Workplace, then: str, now: str, boundary: str
) -> None:
    """A pseudonym stands for one text: where another takes its place, the replay diverges there."""
    workplace.record(workplace.write("agent.py", AGENT))
    provider.stop()
    shared = _export(workplace, *HIDE)
    assert then in AGENT
    replayed = workplace.replay(workplace.write("agent.py", AGENT.replace(then, now)), source=str(shared))
    assert replayed.verdict["verdict"] == "diverged"
    assert replayed.verdict["divergences"][0]["boundary"] == boundary, replayed.stderr


def test_s44_a_program_that_computes_with_a_name_is_told_so(provider: Provider, workplace: Workplace) -> None:
    """A pseudonym has another length than the name; the hint does not ask for a key that nobody has."""
    source = AGENT.replace('open("letter.txt"', 'print("length", len(found["name"]))\nopen("letter.txt"')
    agent = workplace.write("agent.py", source)
    workplace.record(agent)
    provider.stop()
    replayed = workplace.replay(agent, source=str(_export(workplace, *HIDE)))
    assert replayed.verdict["divergences"][0]["boundary"] == "process:stdout", replayed.stderr
    assert "the agent was given tokens for what redaction hides" in replayed.stderr
    assert "the program may compute with a text that this export hides" in replayed.stderr
    assert "SPANREPLAY_REDACT_KEY" not in replayed.stderr


def test_s44_what_cannot_be_hidden_is_refused(provider: Provider, workplace: Workplace) -> None:
    """A text that is too short is named, and one that the run lacks is told; nothing is written without --anonymous."""
    workplace.record(workplace.write("agent.py", AGENT))
    refused = workplace.run("export", "latest", "--anonymous", "--hide", "Al")
    assert refused.returncode == 1
    assert "cannot hide 'Al'" in refused.stderr
    refused = workplace.run("export", "latest", "--hide", "Ann Miller")
    assert refused.returncode == 2
    assert "need --anonymous" in refused.stderr
    assert not list(workplace.path.glob("*.replay"))
    bytes_of = AGENT.replace('"orders": [1, 2]', '"photo": bytes([0, 255]) + b"Ann Miller"')
    workplace.record(workplace.write("agent.py", bytes_of))
    refused = workplace.run("export", "latest", "--anonymous", "--hide", "Ann Miller")
    assert refused.returncode == 1
    assert "cannot hide 'Ann Miller' in call 1 (tool:find_customer)" in refused.stderr
    assert not list(workplace.path.glob("*.replay"))
    done = workplace.run("export", "latest", "--anonymous", "--hide", "Nobody Here", "-o", "x.replay")
    assert "not in this run, so nothing was hidden: 'Nobody Here'" in done.stderr


APP: Final = """
from fastapi import FastAPI, Request
from groq import AsyncGroq

app = FastAPI()
client = AsyncGroq()

@app.post("/chat")
async def chat(request: Request):
    text = (await request.json())["text"]
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"reply": made.choices[0].message.content, "asked": text}
"""


def test_s44_an_anonymous_request_of_a_service_replays_alone(provider: Provider, tmp_path: Path) -> None:
    """What a user wrote to a service is a pseudonym in request, prompt, answer and response, and so is the user."""
    place = prepare(tmp_path, provider, APP)
    headers = {"baggage": "enduser.id=zoe.ng"}
    with serve(place) as server:
        httpx.post(f"{server.url}/chat", json={"text": "I am Zoë Ng"}, headers=headers, timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    done = place.run("ls", "--user", "zoe.ng", "--json")
    (unit,) = [row["run_id"] for row in json.loads(done.stdout)]
    exported = place.run("export", unit, "--anonymous", "--hide", "Zoë Ng", "-o", "shared.replay")
    assert exported.returncode == 0, exported.stderr
    text = _everything(place.path / "shared.replay")
    assert "Zoë" not in text
    assert "Zo\\u00eb" not in text
    assert "zoe.ng" not in text
    replayed = place.replay(*COMMAND, source="shared.replay")
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
