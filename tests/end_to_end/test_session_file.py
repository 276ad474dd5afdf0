"""An agent of functions, parallel work and questions to a person comes back from one file, and does nothing twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.spool import SpoolCatalog
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace

AGENT: Final = """
import asyncio, os, pathlib, random
import httpx, spanreplay

@spanreplay.boundary("tool", name="look_up", effect="read")
async def look_up(order):
    await asyncio.sleep(random.random() / 50)
    return {"order": order, "price": random.randint(1, 10**9)}

@spanreplay.boundary("tool", name="refund", effect="irreversible")
def refund(order, amount):
    with pathlib.Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{order} {amount}\\n")
    return {"refund": random.randint(1, 10**9)}

async def ask(order):
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": f"Refund order {order}?"}]}
    async with httpx.AsyncClient() as client:
        answer = await client.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]

async def main():
    found = await asyncio.gather(*(look_up(order) for order in range(5)), *(ask(order) for order in range(5)))
    print(*found, sep="\\n")
    return sum(each["price"] for each in found[:5])

total = asyncio.run(main())
said = input(f"refund {total}? ")
print("told", said, refund(3, total) if said == "yes" else None)
"""


def test_s17_functions_parallel_work_and_questions_come_back_from_a_session_file(tmp_path: Path) -> None:
    """On another machine's folder, with nobody to ask, no provider, and the effects of nothing repeated."""
    here, there, ledger = tmp_path / "here", tmp_path / "there", tmp_path / "ledger"
    for folder in (here, there):
        folder.mkdir()
        Workplace(folder).write("agent.py", AGENT)
    with Provider() as provider:
        place = Workplace(here, {**provider.environ(), "LEDGER": str(ledger)})
        recorded = subprocess.run(
            ["opentelemetry-instrument", "python", "agent.py"],
            cwd=here, env=place.environ, input="yes\n", text=True, capture_output=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    assert recorded.returncode == 0, recorded.stderr
    spent = ledger.read_text()
    assert spent.startswith("3 ")
    (run,) = SpoolCatalog(here / ".spanreplay").search(RunQuery())
    assert (run.status, run.calls) == ("ok", 12)
    session = there / "session.replay"
    exported = place.run("export", run.root.run_id, "-o", str(session))
    assert exported.returncode == 0, exported.stderr
    far = Workplace(there, {"LEDGER": str(ledger)})
    replayed = far.run("replay", str(session), "--json", str(there / "verdict.json"), "--", "python", "agent.py")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    verdict = json.loads((there / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["divergences"]) == ("identical", [])
    for line in recorded.stdout.splitlines():
        assert line in replayed.stdout
    assert ledger.read_text() == spent
