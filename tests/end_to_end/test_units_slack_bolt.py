"""Slack Bolt apps in socket mode: each event is a separate run, and replays without Slack and the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.slack import a_slack, make_mention
from support.units import await_true, prepare, response_of, serve, serve_with
from support.workers import ASKING, input_of, output_of, record_until, units_of

APP: Final = (
    ASKING
    + """
from slack_bolt import App
from slack_sdk import WebClient

client = WebClient(token="xoxb-a-token", base_url="SLACK")
bolt = App(token="xoxb-a-token", client=client, request_verification_enabled=False)
WARM = ask("warm up")

def work(event, say):
    first, again = ask(event["text"]), ask(event["text"] + " again")
    if "question-2 " in event["text"]:
        raise KeyError(event["text"])
    say(f"{first} {again} {WARM} {time.time()}")

def work_later(event, say):
    say(ask(event["text"] + " later"))

bolt.event("app_mention")(ack=work, lazy=[work_later])
"""
)
IN_SOCKET_MODE: Final = """
from slack_bolt.adapter.socket_mode import SocketModeHandler
SocketModeHandler(bolt, "xapp-a-token").start()
"""
OVER_HTTP: Final = """
from flask import Flask, request
from slack_bolt.adapter.flask import SlackRequestHandler
app = Flask("app")
handler = SlackRequestHandler(bolt)

@app.post("/slack/events")
def hear():
    return handler.handle(request)
"""
SERVER: Final = ("-m", "waitress")
ASYNC_APP: Final = (
    ASKING
    + """
import asyncio, sys
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

client = AsyncWebClient(token="xoxb-a-token", base_url="SLACK")
bolt = AsyncApp(token="xoxb-a-token", client=client, request_verification_enabled=False)
WARM = ask("warm up")

async def work(event, say):
    first, again = await asyncio.gather(think(event["text"]), think(event["text"] + " again"))
    if "question-2 " in event["text"]:
        raise KeyError(event["text"])
    await say(f"{first} {again} {WARM} {time.time()}")

async def work_later(event, say):
    await say(await think(event["text"] + " later"))

bolt.event("app_mention")(ack=work, lazy=[work_later])
"""
)
ASYNC_IN_SOCKET_MODE: Final = """
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler

async def main():
    await AsyncSocketModeHandler(bolt, "xapp-a-token").start_async()

asyncio.run(main())
"""
ASYNC_OVER_HTTP: Final = "bolt.start(port=int(sys.argv[1]))"


@pytest.mark.parametrize("app", [APP + IN_SOCKET_MODE, ASYNC_APP + ASYNC_IN_SOCKET_MODE], ids=["threads", "loop"])
@pytest.mark.sampled(1)
def test_p3_p4_each_slack_event_is_a_run_and_replays_alone(app: str, provider: Provider, tmp_path: Path) -> None:
    """Concurrent events acknowledged before their listeners finish, one of which raises, all replay identically."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    with a_slack([make_mention(number, f"question-{number} ") for number in range(4)]) as slack:
        place.write("shop.py", app.replace("SLACK", slack.url))
        record_until(place, 4, "shop.py", status=-15)
        await_true(lambda: sorted(slack.acknowledged) == ["e0", "e1", "e2", "e3"])
        assert len(slack.posted) == 7
    provider.stop()
    units = {int(unit.root.user_id[1:]): unit for unit in units_of(place, "app_mention")}
    assert sorted(units) == [0, 1, 2, 3]
    for number, unit in units.items():
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert unit.root.session_id == f"C{number}"
        assert input_of(unit)["body"]["event"]["text"] == f"question-{number} "
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) == 3
        assert all(f"question-{number} " in call.request for call in models)
        assert output_of(unit)["response"] == {"status": 200, "body": ""}
    assert [each["type"] for each in output_of(units[2])["raised"]] == ["builtins.KeyError"]
    for unit in (units[2], units[3]):
        replayed = place.replay("shop.py", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p2_p4_a_slack_event_over_http_is_its_request_until_its_listeners_are_done(
    provider: Provider, tmp_path: Path
) -> None:
    """Work that listeners do after the response is in the request's run, and replays."""
    with a_slack([]) as slack:
        place = prepare(tmp_path, provider, (APP + OVER_HTTP).replace("SLACK", slack.url))
        with serve(place, command=SERVER, at="--listen 127.0.0.1:{port} app:app") as server:
            event = make_mention(1, "question-1 ")["payload"]
            assert httpx.post(f"{server.url}/slack/events", json=event, timeout=TIMEOUT_S).status_code == 200
            await_true(lambda: any(unit.root.manifest for unit in server.units()))
            server.stop()
        assert len(slack.posted) == 2
    provider.stop()
    (unit,) = units_of(place)
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert response_of(unit)["status"] == 200
    assert len([call for call in unit.calls if call.kind == "llm"]) == 3
    replayed = place.replay(*SERVER, "--listen", "127.0.0.1:1", "app:app", source=unit.run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"


def test_p2_p4_an_event_of_an_async_app_over_http_is_its_request_until_its_listeners_are_done(
    provider: Provider, tmp_path: Path
) -> None:
    """Tasks of listeners that go on after the response of Bolt's own server are in the request's run, and replay."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    with a_slack([]) as slack:
        place.write("shop.py", (ASYNC_APP + ASYNC_OVER_HTTP).replace("SLACK", slack.url))
        port = free_port()
        with serve_with(place, port, "shop.py", str(port)) as server:
            event = make_mention(1, "question-1 ")["payload"]
            assert httpx.post(f"{server.url}/slack/events", json=event, timeout=TIMEOUT_S).status_code == 200
            await_true(lambda: any(unit.root.manifest for unit in server.units()))
            server.stop()
        assert len(slack.posted) == 2
    provider.stop()
    (unit,) = units_of(place)
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert len([call for call in unit.calls if call.kind == "llm"]) == 3
    replayed = place.replay("shop.py", str(port), source=unit.run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
