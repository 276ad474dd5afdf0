"""`spanreplay stats` says which boundary a recording's size and cost come from."""

from __future__ import annotations

import json

from spanreplay.recording.bundle import unpack
from support.replaying import Workplace

AGENT = """
import spanreplay

@spanreplay.boundary("tool", effect="read")
def fetch(page):
    return {"page": page, "text": "many words about little " * 5000}

@spanreplay.boundary("tool", effect="read")
def price(symbol):
    return 12.5

@spanreplay.boundary("retriever")
def find(text):
    return ["one", "two"]

for number in range(20):
    price(f"S{number}")
fetch(1)
fetch(2)
print(find("words"))
"""


def test_s53_stats_name_the_boundary_that_costs_most(workplace: Workplace) -> None:
    """Calls, bytes and CPU time of each boundary add up to the records of the run, the costliest first."""
    workplace.record(workplace.write("agent.py", AGENT))
    done = workplace.run("stats", "--by-boundary", "--json", "latest")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert next(iter(rows)) == "tool:fetch"
    assert {name: row["calls"] for name, row in rows.items()} == {
        "tool:fetch": 2,
        "tool:price": 20,
        "retriever:find": 1,
        "run": 1,
    }
    assert all(row["cpu_us"] > 0 for row in rows.values())
    assert rows["tool:fetch"]["bytes"] > 2 * len("many words about little " * 5000)
    workplace.run("export", "latest", "-o", "run.replay")
    _, payloads = unpack((workplace.path / "run.replay").read_bytes())
    stored = sum(map(len, payloads))
    assert abs(sum(row["bytes"] for row in rows.values()) - stored) < stored / 10
    kinds = json.loads(workplace.run("stats", "--json").stdout)["rows"]
    assert {name: row["calls"] for name, row in kinds.items()} == {"tool": 22, "retriever": 1, "run": 1}
    assert kinds["tool"]["bytes"] == rows["tool:fetch"]["bytes"] + rows["tool:price"]["bytes"]


def test_s53_stats_are_a_table_and_need_a_run(workplace: Workplace) -> None:
    """People get one line for each boundary; where nothing is recorded the error says how to record."""
    empty = workplace.run("stats")
    assert empty.returncode == 1
    assert "no recorded runs here" in empty.stderr
    workplace.record(workplace.write("agent.py", AGENT), SPANREPLAY_LEVEL="calls")
    done = workplace.run("stats", "--by-boundary")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["BOUNDARY", "CALLS", "BYTES", "SHARE", "BYTES/CALL", "US/CALL"]
    assert lines[1].split()[:2] == ["tool:fetch", "2"]
    assert "1 run; CPU time" in done.stderr
