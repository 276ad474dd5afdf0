"""A trace whose services change their requests or answer with another status: all are replayed together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.units import prepare, serve

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"
STOCK: Final = """
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

app = FastAPI()

@app.post("/price")
async def price(request: Request):
    sent = await request.json()
    if sent["count"] > 9:
        return PlainTextResponse("too many", status_code=422)
    if sent["count"] < 0:
        raise ValueError("fewer than none")
    tenant = {"x-tenant": request.headers["x-tenant"]}
    return JSONResponse({"item": sent["item"], "total": 5 * sent["count"]}, headers=tenant)
"""
ASKING: Final = """
import os
import httpx
from fastapi import FastAPI, Request
from opentelemetry import propagate

app = FastAPI()
started = httpx.get(os.environ["BACK"] + "/openapi.json").json()["openapi"]

def client(request):
    headers = {"x-tenant": "t-1"}
    propagate.inject(headers, propagate.extract(request.headers))
    return httpx.AsyncClient(base_url=os.environ["BACK"], headers=headers, timeout=60)
"""
"""The beginning of a service that calls another one, during startup too."""
SHOP: Final = f"""{ASKING}
@app.post("/order")
async def order(request: Request):
    sent = await request.json()
    async with client(request) as asking:
        made = await asking.post("/price", json={{"item": sent["item"], "count": sent["count"]}})
    if made.headers["content-type"] != "application/json":
        return {{"refused": made.status_code, "why": made.text}}
    return {{"costs": made.json()["total"], "tenant": made.headers["x-tenant"]}}
"""
FRONT: Final = f"""{ASKING}
@app.get("/buy/{{item}}")
async def buy(item: str, request: Request):
    async with client(request) as asking:
        first = (await asking.post("/order", json={{"item": item, "count": 1}})).json()
        more = {{"item": item, "count": first.get("costs", 0) // 5 + 1}}
        return [first, (await asking.post("/order", json=more)).json()]
"""
SOURCES: Final = {"stock": STOCK, "shop": SHOP, "front": FRONT}


@pytest.fixture
def services(provider: Provider, tmp_path: Path) -> dict[str, Workplace]:
    """Three services that call each other, each in its own folder; one request to the first is recorded."""
    found = {}
    for name, source in SOURCES.items():
        (tmp_path / name).mkdir()
        found[name] = prepare(tmp_path / name, provider, source)
        found[name].environ |= {"SPANREPLAY_DIR": str(tmp_path / "recordings"), "SPANREPLAY_APP": name}
    with (
        serve(found["stock"]) as stock,
        serve(found["shop"], BACK=stock.url) as shop,
        serve(found["front"], BACK=shop.url) as front,
    ):
        answer = httpx.get(f"{front.url}/buy/tea", headers={"traceparent": PARENT}, timeout=TIMEOUT_S)
        assert answer.json() == [{"costs": 5, "tenant": "t-1"}, {"costs": 10, "tenant": "t-1"}]
        front.await_ends()
        for each in (front, shop, stock):
            each.stop()
    return found


def replay_trace(services: dict[str, Workplace]) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, runs in the report, and standard error of `spanreplay trace`."""
    place = services["front"]
    folder = place.path.parent
    told = [f"--service={name}={sys.executable} -m uvicorn app:app" for name in services]
    told += [f"--in={name}={name}" for name in services]
    done = subprocess.run(
        [str(BIN / "spanreplay"), "trace", TRACE, *told, "--json", "report.json"],
        cwd=folder, env={**os.environ, **place.environ}, capture_output=True, text=True, timeout=20 * TIMEOUT_S,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stderr
    return done.returncode, json.loads((folder / "report.json").read_text())["runs"], done.stderr


def answer_of(run: dict[str, Any]) -> str:
    """The current answer of a diverged run, from its last divergence."""
    last = run["verdict"]["divergences"][-1]
    assert last["boundary"] == "http:response", last
    return json.dumps([diff.get("now") for diff in last["diff"]])


def test_p4_p6_a_changed_request_goes_through_all_services(services: dict[str, Workplace]) -> None:
    """Each of three chained services gets its caller's new request; later calls use the new answers."""
    services["front"].write("app.py", FRONT.replace('"count": 1', '"count": 3'))
    status, runs, stderr = replay_trace(services)
    assert status == 3, stderr
    assert [each["verdict"]["app"] for each in runs] == ["stock", "stock", "shop", "shop", "front"]
    assert [each["asked"] for each in runs] == [["body"]] * 4 + [[]]
    changed = [[given["changed"] for given in each["given"]] for each in runs]
    assert changed == [[], [], [["body"]], [["body"]], [["body"], ["body"]]]
    assert {each["verdict"]["verdict"] for each in runs} == {"diverged"}
    asked = runs[4]["verdict"]["divergences"][0]
    assert (asked["boundary"].split()[0], asked["diff"][0]["path"]) == ("http:POST", "count")
    caller = runs[3]["caller"]["call"]
    cause = f"the request of call {caller} of front has changed: body"
    assert cause in json.dumps(runs[3]["verdict"]["divergences"])
    assert f"  call {caller} of front sends shop a changed request: body" in stderr
    assert "15" in answer_of(runs[0])
    assert '[{"costs":15,"tenant":"t-1"},{"costs":20,"tenant":"t-1"}]' in json.loads(answer_of(runs[4]))[0]


def test_p4_p6_status_and_type_of_an_answer_are_passed_on(services: dict[str, Workplace]) -> None:
    """A plain-text refusal by the last service is passed on by the first one."""
    services["front"].write("app.py", FRONT.replace("// 5 + 1", "// 5 + 11"))
    status, runs, stderr = replay_trace(services)
    assert status == 3, stderr
    (given,) = runs[3]["given"]
    assert given["changed"] == ["status 422 instead of 200", "header content-type", "header x-tenant", "body"]
    assert all(word in answer_of(runs[4]) for word in ("refused", "422", "too many"))


def test_p4_p6_a_service_that_fails_now_fails_for_its_caller(services: dict[str, Workplace]) -> None:
    """An error in a service is a 500 for its caller, even though the caller's request is the same."""
    services["stock"].write("app.py", STOCK.replace('"count"] < 0', '"count"] == 2'))
    status, runs, stderr = replay_trace(services)
    assert status == 3, stderr
    assert [each["asked"] for each in runs] == [[]] * 5
    assert runs[3]["given"][0]["changed"][:2] == ["status 500 instead of 200", "header content-type"]
    assert all(word in answer_of(runs[4]) for word in ("refused", "500", "Internal Server Error"))
