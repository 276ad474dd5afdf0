"""`spanreplay mutate` on a real agent: which recorded fields affect the outcome and which are ignored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import BIN, Workplace

AGENT = """
import json
from groq import Groq
import spanreplay

@spanreplay.boundary("tool", effect="read")
def price(symbol):
    return {"price": 12.5, "source": "feed-a"}

client = Groq()
reply = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "go"}])
found = price("ACME")
print("slow path" if reply.service_tier != "default" else "fast path")
if found["price"] > 20:
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "too dear"}])
"""


def _mutate(workplace: Workplace, *args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / "spanreplay"), "mutate", *args, "--", str(workplace.python), "agent.py"],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.slow
def test_s35_n9_mutate_tells_which_fields_decide(provider: Provider, workplace: Workplace) -> None:
    """A field outside every key that decides a branch is found, with its effect; the others change nothing."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    provider.stop()
    runs = len(list((workplace.path / ".spanreplay" / "spool").iterdir()))
    asked = len(provider.requests)
    done = _mutate(workplace, "latest", "--json", "--field", "[sp]*[cr][eiv]*")
    found = {(m["boundary"], m["field"]): m for m in json.loads(done.stdout)["mutations"]}
    assert found.keys() == {
        ("llm:openai.chat.completions", "service_tier"),
        ("llm:openai.chat.completions", "system_fingerprint"),
        ("tool:price", "price"),
        ("tool:price", "source"),
    }
    assert found["llm:openai.chat.completions", "system_fingerprint"]["effect"] == "nothing"
    tier = found["llm:openai.chat.completions", "service_tier"]
    assert (tier["effect"], tier["before"]) == ("output", "default")
    price = found["tool:price", "price"]
    assert price["effect"] == "calls"
    assert "llm:openai.chat.completions" in price["detail"]
    assert found["tool:price", "source"]["effect"] == "nothing"
    assert len(list((workplace.path / ".spanreplay" / "spool").iterdir())) == runs
    assert len(provider.requests) == asked


@pytest.mark.slow
def test_s35_mutate_in_words_and_what_it_refuses(provider: Provider, workplace: Workplace, tmp_path: Path) -> None:
    """The table names call, field, change and effect; a run whose unchanged replay diverges is refused."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    provider.stop()
    done = _mutate(workplace, "latest", "--only", "tool:price")
    assert "12.5 → 25.5" in done.stdout
    assert "another call: " in done.stdout
    assert "1 of 2 fields affect the outcome; 1 don't" in done.stderr
    refused = _mutate(workplace, "latest", "--only", "mcp", status=1)
    assert "no answer in this run has a field that could be changed" in refused.stderr
    workplace.write("agent.py", AGENT.replace('"ACME"', '"OTHER"'))
    refused = _mutate(workplace, "latest", status=1)
    assert "the unchanged run does not replay identically (diverged)" in refused.stderr
