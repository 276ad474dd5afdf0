"""A thousand secrets planted in one run appear in nothing that is kept, forwarded or exported."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from spanreplay.recording.spool import iter_frames
from spanreplay_collector.store.store import Store
from support.collector import run_collector
from support.format_samples import TEMPLATES, make_sample
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.route_server import RouteServer
from support.stores import fresh_chdb_url

CANARIES: Final = 1000
PLACES: Final = ("nesting", "streams", "exceptions", "addresses", "headers", "baggage", "prompts", "printing")
TAIL_CHARS: Final = 12
"""This many characters at the end of a canary count as the canary."""
CONTROLS: Final = [f"harmless-words-of-{place}" for place in PLACES]
"""Harmless words in the same places; they must be kept, or the search for the canaries would prove nothing."""
AGENT: Final = """
import json, logging, os, sys
from urllib.parse import quote
import httpx
import spanreplay
from groq import Groq
from opentelemetry import baggage, propagate

SERVER = os.environ["SERVER"]

@spanreplay.boundary("tool", name="look_up", effect="read")
def look_up(arguments):
    return {"found": arguments, "again": json.dumps({"inner": arguments})}

@spanreplay.boundary("tool", name="speak", effect="read")
def speak(words):
    yield "it is "
    for at in range(0, len(words), 7):
        yield words[at : at + 7]
    yield " so far"

@spanreplay.boundary("tool", name="fail", effect="read")
def fail(reason):
    raise ValueError(f"cannot use {reason} here")

def nested(canary):
    look_up({"a": [{"b": json.dumps({"note": f"see {canary} there"})}]})

def streamed(canary):
    list(speak(canary))

def raised(canary):
    try:
        fail(canary)
    except ValueError:
        pass

def in_url(canary):
    httpx.get(f"{SERVER}/find?q={quote(canary, safe='')}&page=2")

def in_header(canary):
    httpx.get(f"{SERVER}/find", headers={"x-note": canary})

def in_baggage(canary):
    headers = {}
    propagate.inject(headers, baggage.set_baggage("note", canary))
    assert "baggage" in headers
    httpx.get(f"{SERVER}/find", headers=headers)

def prompted(canary):
    messages = [{"role": "user", "content": f"remember {canary} for me"}]
    Groq().chat.completions.create(model="gpt-x", messages=messages)

def printed(canary):
    print("printed", canary)
    logging.getLogger("agent").error("logged %s", canary)

PLACES = [nested, streamed, raised, in_url, in_header, in_baggage, prompted, printed]
for number, canary in enumerate(json.loads(sys.stdin.read())):
    PLACES[number % len(PLACES)](canary)
"""


def make_canaries() -> Iterator[str]:
    """Keys and tokens in every provider's format, e-mail addresses, card numbers and bank accounts, all different."""
    dice = random.Random(20)
    for number in range(CANARIES):
        kind = number // 8 % 4
        if kind < 2:
            yield make_sample(TEMPLATES[number % len(TEMPLATES)], number)
        elif kind == 2:
            yield f"{''.join(dice.choices('abcdefghijklmnopqrstuvwxyz', k=14))}@mail.example.com"
        elif number % 2:
            yield make_card(dice)
        else:
            yield make_iban(dice)


def make_card(dice: random.Random) -> str:
    """A 16-digit number with Visa's prefix and a Luhn check digit."""
    digits = [4, *(dice.randrange(10) for _ in range(14))]
    doubled = [digit if place % 2 else sum(divmod(digit * 2, 10)) for place, digit in enumerate(digits)]
    return "".join(map(str, [*digits, -sum(doubled) % 10]))


def make_iban(dice: random.Random) -> str:
    """A German account number with its check digits."""
    account = "".join(str(dice.randrange(10)) for _ in range(18))
    return f"DE{98 - int(account + '131400') % 97:02d}{account}"


def read_kept(workplace: Workplace, run_id: str) -> dict[str, bytes]:
    """Everything kept of a run on its machine, unpacked, by location."""
    kept = {}
    for path in (workplace.path / ".spanreplay").rglob("*"):
        if path.is_file():
            kept[str(path)] = b"\n".join(iter_frames(path)) if path.suffix == ".spool" else path.read_bytes()
    for name, option in (("run.replay", []), ("run.jsonl", ["--jsonl"])):
        file = workplace.path / name
        run_cli(workplace, "export", run_id, *option, "-o", str(file))
        kept[name] = file.read_bytes()
    with zipfile.ZipFile(workplace.path / "run.replay") as bundle:
        for each in bundle.namelist():
            kept[f"run.replay/{each}"] = bundle.read(each)
    return kept


def run_cli(workplace: Workplace, *arguments: str) -> None:
    done = workplace.run(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_r1_a_thousand_canaries_are_in_nothing_that_is_kept(provider: Provider, tmp_path: Path) -> None:
    """Nested JSON, split streams, exceptions, URLs, headers, baggage: not in spool, store, bundle, exports or logs."""
    canaries = list(make_canaries())
    assert len(set(canaries)) == CANARIES
    (place := tmp_path / "agent").mkdir()
    with RouteServer({"/find": lambda handler: handler.send(b"{}")}) as server:
        workplace = Workplace(place, {**provider.environ(), "SERVER": server.url})
        process = subprocess.run(
            [str(BIN / "opentelemetry-instrument"), sys.executable, str(workplace.write("agent.py", AGENT))],
            cwd=place,
            env={**workplace.environ, "SPANREPLAY_SUMMARY": "always"},
            input=json.dumps([*canaries, *CONTROLS]),
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
    assert canaries[7] in process.stdout
    recording = workplace.recording()
    assert len(recording.calls) >= CANARIES * 7 // 8
    kept = read_kept(workplace, recording.run_id)
    kept["log"] = "\n".join(line for line in process.stderr.splitlines() if "spanreplay" in line).encode()
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        with run_collector(tmp_path / "collector", store) as running:
            run_cli(workplace, "ship", "--endpoint", running.http)
            running.flush()
        kept["store"] = b"\n".join(store.read_run("default", recording.run_id))
    assert "recorded" in kept["log"].decode()
    for name in ("store", "run.jsonl"):
        assert [control for control in CONTROLS if control.encode() not in kept[name]] == []
    found = [(canary, where) for where, content in kept.items() for canary in canaries if find(canary, content)]
    assert found == []


def find(canary: str, content: bytes) -> bool:
    """Whether the content holds a canary or its end; for an e-mail address, only the local part is compared."""
    return canary.partition("@")[0][-TAIL_CHARS:].encode() in content
