"""Units that need state from earlier ones in their process: alone they diverge, warmed up they are identical."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.model.call import Recording
from spanreplay.recording.spool import SpoolCatalog
from support.provider import Provider
from support.replaying import TIMEOUT_S, Replayed, Workplace
from support.suites import replay_suite
from support.units import COMMAND, Server, path_of, serve

APP: Final = """
import time, uuid

from fastapi import FastAPI, Request
from groq import AsyncGroq

app = FastAPI()
cache, sessions, made = {}, {}, []

def client():
    if not made:
        made.append(AsyncGroq(default_headers={"x-made": uuid.uuid4().hex}))
    return made[0]

async def ask(text):
    if text not in cache:
        answer = await client().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
        cache[text] = answer.choices[0].message.content
    return cache[text]

@app.post("/login")
async def login(request: Request):
    token = uuid.uuid4().hex
    sessions[token] = {"name": (await request.json())["name"], "since": time.time()}
    return {"token": token, "plan": await ask("a plan")}

@app.post("/ask")
async def asked(request: Request):
    given = await request.json()
    session = sessions.get(given["session"], {"name": "nobody", "since": 0})
    return {"name": session["name"], "since": session["since"], "now": time.time(), "reply": await ask(given["text"])}
"""
WATCHED: Final = """
import asyncio
from fastapi.responses import StreamingResponse
ended = asyncio.Event()

async def parts():
    cache["watched"] = True
    yield "began"
    await ended.wait()
    yield "ended"

@app.get("/watch")
async def watch():
    return StreamingResponse(parts())

@app.post("/end")
async def end():
    ended.set()
    return {"known": len(cache)}
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("app.py", APP)
    return workplace


def _record(place: Workplace, level: str = "full") -> list[Recording]:
    """One request for each kind of state: log in, ask, and ask again for a cached answer."""
    with serve(place, SPANREPLAY_LEVEL=level) as server:
        token = _post(server, "login", name="ann")["token"]
        _post(server, "ask", session=token, text="hello")
        _post(server, "ask", session=token, text="bye")
        _post(server, "ask", session=token, text="hello")
        server.stop()
    units = server.units()
    assert [path_of(unit) for unit in units] == ["/login", "/ask", "/ask", "/ask"]
    return units


def _post(server: Server, path: str, **given: str) -> dict[str, str]:
    answer = httpx.post(f"{server.url}/{path}", json=given, timeout=TIMEOUT_S)
    assert answer.status_code == 200
    found: dict[str, str] = answer.json()
    return found


def _warm(place: Workplace, source: str, count: str = "all") -> Replayed:
    return place.replay(*COMMAND, source=source, options=["--warm", count])


def _whys(replayed: Replayed) -> list[str]:
    return [unit["why"] for unit in replayed.verdict["warm_up"]["units"]]


def test_p4_a_unit_that_only_a_later_one_ends_stays_under_way(provider: Provider, place: Workplace) -> None:
    """A watcher's answer comes when another request ends it: it delays neither the units before that one nor itself."""
    place.write("app.py", APP + WATCHED)
    with serve(place) as server:
        with httpx.stream("GET", f"{server.url}/watch", timeout=TIMEOUT_S) as watched:
            parts = watched.iter_text()
            assert next(parts) == "began"
            for text in ("hello", "hello"):
                _post(server, "ask", session="", text=text)
            _post(server, "end")
            assert next(parts) == "ended"
        server.stop()
    units = {(path_of(unit), count): unit for count, unit in enumerate(server.units())}
    provider.stop()
    for path, count in (("/ask", 2), ("/end", 3)):
        warm = _warm(place, units[path, count].run_id)
        assert warm.status == 0, warm.stderr
        assert _whys(warm) == ["missing_call at http:response", "", ""][:count]


@pytest.mark.parametrize("level", ["full", "calls"])
@pytest.mark.sampled(1)
def test_p4_a_unit_is_identical_after_its_earlier_units(provider: Provider, place: Workplace, level: str) -> None:
    """Alone it diverges, and the hint names the command; after all earlier units, or the needed number, it doesn't."""
    units = _record(place, level)
    provider.stop()
    alone = place.replay(*COMMAND, source=units[3].run_id, options=("--warm", "0"))
    assert alone.status == 3, alone.stderr
    assert "3 units of its process came before" in alone.verdict["divergences"][0]["hint"]
    assert f"spanreplay replay {units[3].run_id} --warm all -- " in alone.verdict["divergences"][0]["hint"]
    (said,) = re.findall(f"to replay them first: spanreplay replay {units[3].run_id} --warm all -- .*", alone.stderr)
    assert said.endswith(" ".join(COMMAND)), said
    warm = _warm(place, units[3].run_id)
    assert warm.status == 0, warm.stderr
    assert "identical after warming up with 3 earlier units" in warm.stderr
    assert _whys(warm) == ["", "", ""]
    assert warm.verdict["counts"]["recorded"] == alone.verdict["counts"]["recorded"]
    assert warm.verdict["counts"]["served"] == warm.verdict["counts"]["recorded"]
    for count, status in (("1", 3), ("2", 3), ("3", 0)):
        assert _warm(place, units[3].run_id, count).status == status, count
    middle = _warm(place, units[2].run_id)
    assert middle.status == 0, middle.stderr
    assert "identical after warming up with 2 earlier units" in middle.stderr
    first = _warm(place, units[0].run_id)
    assert first.status == 0, first.stderr
    assert "no unit of its process came before this one" in first.stderr


def test_p4_only_the_judged_unit_decides(provider: Provider, place: Workplace) -> None:
    """A changed answer of that unit diverges at its response; a changed earlier unit is only reported."""
    units = _record(place)
    provider.stop()
    place.write("app.py", APP.replace('"now": time.time()', '"then": time.time()'))
    changed = _warm(place, units[3].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "http:response")]
    assert _whys(changed) == ["", "changed_call at http:response", "changed_call at http:response"]
    place.write("app.py", APP.replace('"plan": await', '"scheme": await'))
    other = _warm(place, units[3].run_id)
    assert other.status == 0, other.stderr
    assert other.verdict["divergences"] == []
    said = (
        f"warming up: 1 of 3 earlier units was not replayed in full: {units[0].run_id} (changed_call at http:response)"
    )
    assert said in other.stderr
    place.write("app.py", APP.replace("await ask(given", "await ask('so ' * (given['text'] == 'bye') + given"))
    lost = _warm(place, units[3].run_id)
    assert lost.status == 0, lost.stderr
    assert _whys(lost) == ["", "", "changed_call at llm:openai.chat.completions"]


def test_p4_files_elsewhere_warm_up_too(
    provider: Provider, place: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Exported units replay in another folder; if some or all are missing, the report says so."""
    units = _record(place)
    process = units[0].root.env["unit"]["process"]
    provider.stop()
    elsewhere = Workplace(tmp_path_factory.mktemp("laptop"))
    elsewhere.write("app.py", APP)
    key = {"SPANREPLAY_REDACT_KEY": str(place.path / ".spanreplay" / "redact.key")}
    catalog = SpoolCatalog(place.path / ".spanreplay")
    for run_id in (process, *(unit.run_id for unit in units)):
        (elsewhere.path / f"{run_id}.replay").write_bytes(catalog.export(run_id))
    catalog.close()
    source = f"{units[3].run_id}.replay"
    warm = elsewhere.replay(*COMMAND, source=source, options=["--warm", "all"], **key)
    assert warm.status == 0, warm.stderr
    assert "identical after warming up with 3 earlier units" in warm.stderr
    (elsewhere.path / f"{units[2].run_id}.replay").unlink()
    fewer = elsewhere.replay(*COMMAND, source=source, options=["--warm", "all"], **key)
    assert fewer.status == 0, fewer.stderr
    assert "2 of the 3 units that came before were replayed first" in fewer.stderr
    for unit in units[:2]:
        (elsewhere.path / f"{unit.run_id}.replay").unlink()
    none = elsewhere.replay(*COMMAND, source=source, options=["--warm", "all"], **key)
    assert none.status == 1
    assert "none of the 3 earlier units of its process is here" in none.stderr


SCRIPT: Final = """
import sys, time, uuid

import spanreplay
from groq import Groq

client, known = Groq(), {}

@spanreplay.run(name="job")
def job(ticket):
    if ticket not in known:
        made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": ticket}])
        known[ticket] = made.choices[0].message.content
    return {"reply": known[ticket], "count": len(known), "id": uuid.uuid4().hex, "at": time.time()}

for ticket in ("one", "two", "one", "two"):
    job(ticket)
"""


def test_p3_units_by_hand_warm_up_too(provider: Provider, place: Workplace) -> None:
    """Earlier calls of a decorated function run first, even with the same input; only the last is judged."""
    agent = place.write("agent.py", SCRIPT)
    place.record(agent)
    provider.stop()
    units = [each for each in place.recordings() if "unit" in each.root.env]
    assert [json.loads(u.calls[0].request)["arguments"]["input"]["args"][0] for u in units] == ["one", "two"] * 2
    alone = place.replay(agent, source=units[3].run_id, options=("--warm", "0"))
    assert alone.status == 3, alone.stderr
    warm = place.replay(agent, source=units[3].run_id, options=["--warm", "all"])
    assert warm.status == 0, warm.stderr
    assert "identical after warming up with 3 earlier units" in warm.stderr
    last = place.replay(agent, source=units[3].run_id, options=["--warm", "1"])
    assert last.status == 3, last.stderr
    place.write("agent.py", SCRIPT.replace('"count": len(known)', '"number": len(known)'))
    changed = place.replay(agent, source=units[3].run_id, options=["--warm", "all"])
    assert changed.causes() == [("changed_call", "compute:output")]
    assert _whys(changed) == ["changed_call at compute:output"] * 3


def test_p4_what_can_not_be_warmed_up_is_refused(provider: Provider, place: Workplace) -> None:
    """A run that is not a unit, or an invalid count, is refused."""
    agent = place.write("agent.py", "from openai import OpenAI\nOpenAI().models.list()\n")
    place.record(agent)
    refused = place.replay(agent, options=["--warm", "all"])
    assert refused.status == 1
    assert "is not a unit of a process that serves many" in refused.stderr
    wrong = place.replay(agent, options=["--warm", "few"])
    assert wrong.status == 2
    assert "'few' is not a number up to 1000, all or auto" in wrong.stderr


def test_p4_units_are_kept_apart_while_they_warm_up(provider: Provider, place: Workplace) -> None:
    """A secret of an earlier unit is not one of the next; a plan goes live only in the judged unit."""
    with serve(place) as server:
        _post(server, "login", name="ann", password="tulip-garden-77")
        _post(server, "ask", session="", text="what grows in tulip-garden-77 in May?")
        _post(server, "ask", session="", text="what grows in tulip-garden-77 in May?", password="tulip-garden-77")
        server.stop()
    units = server.units()
    assert ["tulip-garden-77" in unit.calls[1].response for unit in units] == [False, True, False]
    assert "tulip-garden-77" in units[1].calls[2].request
    provider.requests.clear()
    live = place.replay(*COMMAND, source=units[1].run_id, options=["--warm", "all", "--live", "llm:*"])
    assert _whys(live) == [""]
    assert [request["messages"][0]["content"] for _, request in provider.requests] == [
        "what grows in tulip-garden-77 in May?"
    ]
    provider.stop()
    warm = _warm(place, units[2].run_id)
    assert warm.status == 0, warm.stderr
    assert _whys(warm) == ["", ""]


MANY: Final = """
import asyncio, time, uuid
from concurrent.futures import ThreadPoolExecutor

import spanreplay
from groq import AsyncGroq, Groq

client, patient, known, lock = Groq(), AsyncGroq(), {}, asyncio.Lock()
first = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hello"}])

@spanreplay.run(name="job")
def job(ticket):
    made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": ticket}])
    known[ticket] = made.choices[0].message.content
    return {"reply": known[ticket], "id": uuid.uuid4().hex}

@spanreplay.run(name="wait")
async def wait(ticket):
    made = await patient.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": ticket}])
    await asyncio.sleep(0.001)
    known[ticket] = made.choices[0].message.content
    return {"reply": known[ticket], "id": uuid.uuid4().hex}

@spanreplay.run(name="last")
def last(ticket):
    return {"known": sorted(known.items()), "at": time.time()}

with ThreadPoolExecutor(3) as pool:
    list(pool.map(job, ("one", "two", "three")))

async def main():
    await asyncio.gather(*map(wait, ("four", "five", "six")))

asyncio.run(main())
last("the end")
"""


def test_p3_units_that_ran_side_by_side_warm_up(provider: Provider, place: Workplace) -> None:
    """Earlier units that ran in threads and tasks are replayed one after another, and their state is there."""
    agent = place.write("agent.py", MANY)
    place.record(agent)
    provider.stop()
    units = [each for each in place.recordings() if "unit" in each.root.env]
    assert len(units) == 7
    (judged,) = [each for each in units if each.root.app == "last"]
    assert place.replay(agent, source=judged.run_id, options=("--warm", "0")).status == 3
    warm = place.replay(agent, source=judged.run_id, options=["--warm", "all"])
    assert _whys(warm) == [""] * 6
    assert warm.status == 0, warm.stderr


BLOCKS: Final = """
import spanreplay
from groq import Groq

client, known = Groq(), []
for ticket in ("one", "two"):
    with spanreplay.run(name="block", input=ticket) as unit:
        made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": ticket}])
        known.append(made.choices[0].message.content)
        unit.result(list(known))
"""


def test_p3_a_block_that_is_not_the_first_one_replays_after_those_before_it(
    provider: Provider, place: Workplace
) -> None:
    """Its state is there, and an earlier block that can't be replayed doesn't end the program."""
    agent = place.write("agent.py", BLOCKS)
    place.record(agent)
    provider.stop()
    units = [each for each in place.recordings() if "unit" in each.root.env]
    assert place.replay(agent, source=units[1].run_id).status == 1
    warm = place.replay(agent, source=units[1].run_id, options=["--warm", "all"])
    assert warm.status == 0, warm.stderr
    assert _whys(warm) == [""]
    place.write("agent.py", BLOCKS.replace('"content": ticket', '"content": ticket.replace("one", "none")'))
    lost = place.replay(agent, source=units[1].run_id, options=["--warm", "all"])
    assert _whys(lost) == ["changed_call at llm:openai.chat.completions"]
    assert lost.causes() == [("changed_call", "compute:output")]


def test_p4_the_one_unit_that_is_needed_is_found(provider: Provider, place: Workplace) -> None:
    """It takes several replays, also by default where the code is unchanged; if none helps, all are in the verdict."""
    with serve(place) as server:
        for text in ("one", "two", "three", "four", "two"):
            _post(server, "ask", session="", text=text)
        server.stop()
    provider.stop()
    units = server.units()
    found = _warm(place, units[4].run_id, "auto")
    assert found.status == 0, found.stderr
    assert f"it needs the state that 1 earlier unit left behind: {units[1].run_id}" in found.stderr
    assert [each["run_id"] for each in found.verdict["warm_up"]["units"]] == [units[1].run_id]
    assert found.verdict["warm_up"]["is_needed"] is True
    asked = place.replay(*COMMAND, source=units[4].run_id)
    assert "its code is unchanged, and it diverged: does it need what earlier units left in memory?" in asked.stderr
    assert (asked.status, asked.verdict["warm_up"]) == (0, found.verdict["warm_up"]), asked.stderr
    place.write("app.py", APP.replace('"reply": await', '"answer": await'))
    unasked = place.replay(*COMMAND, source=units[4].run_id)
    assert unasked.status == 3, unasked.stderr
    assert "earlier units left in memory?" not in unasked.stderr
    changed = _warm(place, units[4].run_id, "auto")
    assert changed.causes() == [("changed_call", "http:response")]
    assert len(changed.verdict["warm_up"]["units"]) == 4
    assert "it needs the state" not in changed.stderr


def test_p4_units_of_a_suite_begin_behind_their_earlier_units(provider: Provider, place: Workplace) -> None:
    """Without earlier units three of four diverge; after them, each in a fork of one start, all are identical.

    An earlier unit that differs is named, and doesn't affect the result.
    """
    units = _record(place, "calls")
    provider.stop()
    alone = replay_suite(place, *COMMAND, options=["--process", units[0].run_id, "--warm", "0"])
    assert alone.report["counts"] == {"identical": 1, "diverged": 3}, alone.stderr
    warm = replay_suite(place, *COMMAND, options=["--process", units[0].run_id, "--warm", "all", "--jobs", "2"])
    assert (warm.status, warm.report["counts"]) == (0, {"identical": 4}), warm.stderr
    assert warm.report["starts"] == 1
    assert [len(unit.get("warm_up", {}).get("units", ())) for unit in warm.report["units"]] == [0, 1, 2, 3]
    place.write("app.py", APP.replace('{"token": token,', '{"token": token, "more": 1,'))
    changed = replay_suite(place, *COMMAND, options=["--process", units[0].run_id, "--warm", "all"])
    assert changed.report["counts"] == {"diverged": 1, "identical": 3}, changed.stderr
    whys = [[each["why"] for each in unit.get("warm_up", {}).get("units", ())] for unit in changed.report["units"]]
    assert [why[:1] for why in whys] == [[], *[["changed_call at http:response"]] * 3]
    place.write("app.py", APP)
    (place.path / "files").mkdir()
    catalog = SpoolCatalog(place.path / ".spanreplay")
    for run in place.recordings():
        (place.path / "files" / f"{run.run_id}.replay").write_bytes(catalog.export(run.run_id))
    catalog.close()
    named = [word for unit in units for word in ("--run", f"files/{unit.run_id}.replay")]
    shutil.rmtree(place.path / ".spanreplay" / "spool")
    files = replay_suite(place, *COMMAND, options=[*named, "--warm", "3"])
    assert (files.status, files.report["counts"]) == (0, {"identical": 4}), files.stderr


def _needed(unit: dict[str, Any]) -> list[str]:
    return [each["run_id"] for each in unit.get("warm_up", {}).get("units", ())]


def test_p4_n12_a_suite_finds_the_earlier_units_that_its_units_need(provider: Provider, place: Workplace) -> None:
    """By default: a client that the first request made, and answers that are kept; a changed response diverges."""
    with serve(place) as server:
        for text in ("one", "two", "one", "two", "three", "one"):
            _post(server, "ask", session="", text=text)
        _post(server, "login", name="ann")
        server.stop()
    provider.stop()
    units = [unit.run_id for unit in server.units()]
    found = replay_suite(place, *COMMAND, options=["--process", units[0]])
    assert (found.status, found.report["counts"]) == (0, {"identical": 7}), found.stderr
    whose = [_needed(unit) for unit in found.report["units"]]
    client = [units[0]]
    assert whose == [[], client, client, units[:3], client, client, client]
    assert [unit.get("warm_up", {}).get("is_needed") for unit in found.report["units"][1:4]] == [True, None, None]
    assert f"identical    {units[2]}  after 1 earlier unit" in found.stderr
    place.write("app.py", APP.replace('{"token": token,', '{"token": token, "more": 1,'))
    changed = replay_suite(place, *COMMAND, options=["--process", units[0]])
    assert changed.words() == {**dict.fromkeys(units, "identical"), units[6]: "diverged"}, changed.stderr
    assert changed.causes(units[6]) == [("changed_call", "http:response")]
