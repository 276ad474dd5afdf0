"""`spanreplay minimize` on a real agent: the calls and fields that a failure needs stay, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spanreplay.recording.bundle import load_file
from support.provider import Provider
from support.replaying import Workplace

AGENT = """
import json, os, urllib.request
import spanreplay

ORDERS = [{"id": n, "paid": 10 * n, "note": f"order number {n}", "tags": ["a", "b"]} for n in range(1, 6)]
ORDERS[3]["paid"] = -60

@spanreplay.boundary("tool", effect="read")
def orders():
    return {"orders": ORDERS, "page": 1, "source": "shop-eu"}

@spanreplay.boundary("tool", effect="write")
def book(order):
    return {"booked": order, "ledger": "2026-11"}

def ask(text):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]

found = orders()
for order in found["orders"]:
    if order["paid"] < 0:
        raise ValueError(f"order {order['id']} was paid with {order['paid']}")
    summary = ask(f"what is order {order['id']}?")
    book(order["id"])
print("done")
"""


def _minimize(workplace: Workplace, *args: str, status: int = 0) -> Any:
    done = workplace.run("minimize", "latest", *args, "--", str(workplace.python), "agent.py")
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.slow
def test_w4_smallest_recording_that_still_fails(provider: Provider, workplace: Workplace) -> None:
    """Of seven calls one stays, with the one order and field that the failure needs; it replays as it says."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py", status=1)
    provider.stop()
    asked = len(provider.requests)
    original = workplace.recording()
    assert len(original.calls) == 7
    done = _minimize(workplace, "-o", "small.replay", "--json")
    told = json.loads(done.stdout)
    assert told["calls"] == {"before": 7, "now": 1}
    assert "order 4 was paid with -60 (agent.py:25)" in told["failure"]
    assert told["is_whole"]
    small = load_file(workplace.path / "small.replay")
    (call,) = small.calls
    assert json.loads(call.response) == {"value": {"orders": [{"id": 0, "paid": -1}]}}
    assert small.run_id != original.run_id
    assert small.root.env["derived"] == {
        "from": original.run_id,
        "root": original.root.manifest["root"],
        "by": "minimize",
        "failure": "exit 1, ValueError at agent.py:25",
    }
    replayed = workplace.replay("agent.py", source="small.replay")
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical")
    assert "order 0 was paid with -1" in replayed.stderr
    assert f"derived from {original.run_id} by minimize: it does not show what happened" in replayed.stderr
    assert len(provider.requests) == asked
    _minimize(workplace, "-o", "again.replay")
    assert (workplace.path / "again.replay").read_bytes() == (workplace.path / "small.replay").read_bytes()


CHECK = """
import json, sys
trial = json.load(sys.stdin)
booked = [c["request"]["arguments"]["order"] for c in trial["calls"] if c["boundary"] == "tool:book"]
if 3 in booked:
    sys.exit("order 3 was booked")
"""


@pytest.mark.slow
def test_w4_check_says_what_fails(provider: Provider, workplace: Workplace) -> None:
    """With a check, the calls that it looks at stay; a run that does not fail, and a search cut short, are told."""
    workplace.write("agent.py", AGENT)
    workplace.write("check.py", CHECK)
    workplace.record("agent.py", status=1)
    provider.stop()
    check = f"{workplace.python} check.py"
    done = _minimize(workplace, "--check", check, "-n", "30")
    assert "order 3 was booked" in done.stderr
    path = Path(done.stdout.strip())
    small = load_file(workplace.path / path)
    assert path.name == f"{small.run_id}.replay"
    assert [call.boundary for call in small.calls] == ["tool:orders", "llm:openai.chat.completions", "tool:book"]
    assert json.loads(small.calls[2].request)["arguments"] == {"order": 3}
    assert "the search ended at -n" in done.stderr
    workplace.write("check.py", "")
    refused = _minimize(workplace, "--check", check, status=1)
    assert "the agent does not fail with this recording" in refused.stderr
