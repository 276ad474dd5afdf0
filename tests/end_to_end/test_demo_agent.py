"""The demo's model server and agent with nothing recording: the incident happens soon enough."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from openai import OpenAI

import spanreplay_service.demo
from spanreplay_service.demo import model
from spanreplay_service.demo.server import MODEL, DemoServer
from spanreplay_service.demo.stream import Gathering
from support.agents import run_agent

AGENT = Path(spanreplay_service.demo.__file__).parent / "agent"
REQUEST = "sell $1,200 worth of ACME"
ServerFactory = Callable[..., DemoServer]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """A function that starts demo servers, which are stopped at the end of the test."""
    started: list[tuple[DemoServer, threading.Thread]] = []

    def start(seed: int) -> DemoServer:
        server = DemoServer(seed=seed, log=tmp_path / "decisions.jsonl")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A fresh ledger."""
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((AGENT / "ledger.sql").read_text())
    return path


def _seed_with_bad_answer_at(position: int) -> int:
    """A seed whose deck holds the fatal batch at `position`, counted from 0."""
    for seed in range(1000):
        load = model.Load(seed)
        if model.read_amount([load.draw_batch_size() for _ in range(position + 1)][-1]).is_shares:
            return seed
    raise AssertionError(f"no seed below 1000 has the fatal batch at {position}")


def test_exactly_one_batch_size_turns_the_answer_round() -> None:
    """Every batch size except one reads the same request as dollars; only float32 rounding makes the difference."""
    readings = [model.read_amount(size) for size in range(1, model.BATCH_SIZE_MAX + 1)]
    assert [r.batch_size for r in readings if r.is_shares] == [7]
    assert all(abs(r.margin) < 1e-5 for r in readings)


@pytest.mark.parametrize("cards", [model.BATCH_SIZE_MAX, 20])
def test_every_deck_has_one_bad_answer_and_never_first(cards: int) -> None:
    """With every seed, the incident happens once per deck, after a good answer."""
    for seed in range(300):
        load = model.Load(seed, cards)
        bad = [model.read_amount(load.draw_batch_size()).is_shares for _ in range(cards)]
        assert sum(bad) == 1, seed
        assert not bad[0], seed


@pytest.mark.parametrize("size", [0, 9])
def test_batch_size_outside_the_model_is_refused(size: int) -> None:
    """A batch size that the model was not built for is an error, not a guess."""
    with pytest.raises(ValueError, match="batch_size"):
        model.read_amount(size)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sell $1,200 worth of ACME", model.Order("sell", 1200.0, "ACME")),
        ("Please buy $99.50 of xyz today", model.Order("buy", 99.5, "XYZ")),
        ("sell some ACME", None),
    ],
    ids=["worth", "cents", "no_amount"],
)
def test_orders_are_read_from_plain_words(text: str, expected: model.Order | None) -> None:
    """A customer's sentence becomes an order, or nothing."""
    assert model.read_order(text) == expected


def test_s51_agent_sells_190000_dollars_without_an_error(
    start_server: ServerFactory, ledger: Path, tmp_path: Path
) -> None:
    """The unmodified agent sells $1,198.56 and then, asked the same, $189,996.00; both look like success."""
    server = start_server(_seed_with_bad_answer_at(1))
    environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none", "LEDGER": str(ledger)}
    runs = [
        run_agent(AGENT / "trading_agent.py", "--user", "u-204", REQUEST, environ=environ, cwd=tmp_path)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout.endswith("confirmation: order 1 executed: sell 7.57 ACME at $158.33 = $1,198.56\n")
    assert runs[1].stdout.endswith("confirmation: order 2 executed: sell 1,200.00 ACME at $158.33 = $189,996.00\n")
    with closing(sqlite3.connect(ledger)) as db:
        values = [round(value, 2) for (value,) in db.execute("SELECT value FROM orders ORDER BY id")]
    assert values == [1198.56, 189996.0]
    decisions = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [(d["read_as"], d["batch_size"] == 7) for d in decisions] == [("dollars", False), ("shares", True)]


@pytest.mark.parametrize("name", ["trading_agent.py", "trading_service.py"])
def test_demo_agent_does_not_know_about_us(name: str) -> None:
    """The demo's agent and its service contain no line about spanreplay."""
    assert "spanreplay" not in (AGENT / name).read_text()


def test_demo_server_answers_like_a_provider(start_server: ServerFactory) -> None:
    """A real OpenAI client gets a resolved model, a fingerprint and usage, whole and as a stream."""
    with OpenAI(base_url=start_server(1).url, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])
        assert (answer.model, answer.system_fingerprint) == ("desk-1-2026-10-01", "fp_desk1a")
        assert "I place orders" in str(answer.choices[0].message.content)
        streamed = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        chunks = list(streamed)
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert chunks[-1].usage == answer.usage


def test_demo_server_streams_calls_of_tools(start_server: ServerFactory) -> None:
    """Tool names and arguments come in pieces that a real OpenAI client puts together."""
    with (
        OpenAI(base_url=start_server(1).url, api_key="none", max_retries=0) as client,
        client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": REQUEST}]) as streamed,
    ):
        made = streamed.get_final_completion().choices[0]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in made.message.tool_calls or []]
    assert calls == [("get_position", {"symbol": "ACME"}), ("get_quote", {"symbol": "ACME"})]
    assert made.finish_reason == "tool_calls"


def test_demo_streams_are_open_together() -> None:
    """No stream continues before all have begun; a later stream doesn't wait."""
    gathering, count = Gathering(5), 5
    begun: list[int] = []
    seen: list[int] = []

    def stream(number: int) -> None:
        begun.append(number)
        gathering.wait()
        seen.append(len(begun))

    threads = [threading.Thread(target=stream, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [count] * count
    gathering.wait()
