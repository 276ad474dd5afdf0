"""An agent that uses secrets it was given replays identically with the redaction key, however it got them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.replaying import Workplace
from support.route_server import Handler, RouteServer

TOKEN = "tok-Zx81-qqPl/9931+Ab"
COOKIE = "abc123def456ghi789"
STREAMED = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
ROW = "5up3r+S3cret/77=="
PRINTED = "Qw31-oOtter-4242-x"
GIVEN = "Pv77-uNder-1717-y"
CAUGHT = "Lk55-mOment-9090-z"
STATE = "Hj24-sTeady-6161-q"
SECRETS = (TOKEN, COOKIE, STREAMED, ROW, PRINTED, GIVEN, CAUGHT, STATE)

AGENT = r"""
from concurrent.futures import ProcessPoolExecutor
import base64, contextlib, hashlib, hmac, json, multiprocessing, os, sqlite3, subprocess, sys
import httpx
import spanreplay

url = sys.argv[1]


@spanreplay.boundary("tool", effect="read")
def vault(number):
    print("the api_key=" + read("printed"))
    return {"password": read("row")[::1]}


@spanreplay.boundary("tool", effect="read")
def pieces():
    got = yield {"password": read("given")[:9]}
    yield {"password": read("given"), "heard": len(got)}


@spanreplay.boundary("tool", effect="read")
def refuse():
    raise PermissionError("api_key=" + read("caught") + " was refused")


@spanreplay.boundary("tool", effect="write")
def submit(what):
    return len(str(what))


class Heard:
    # Keeps what is printed, and passes it on

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return sys.__stdout__.write(text)

    def flush(self):
        sys.__stdout__.flush()


def read(name):
    return json.loads(os.environ["GIVEN"])[name]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def work(secret):
    return submit(digest(secret))


if __name__ == "__main__":
    reply = httpx.get(url + "/login")
    token, cookie = reply.json()["access_token"], reply.headers["set-cookie"]
    print("token", len(token), token[:5], token.upper(), sorted(["tok-A", token, "tok-zz"]).index(token))
    print("cookie:", cookie, len(cookie))
    print({"set-cookie": cookie})
    signed = hmac.new(token.encode(), b"GET /orders", "sha256").hexdigest()
    httpx.get(url + "/orders", params={"signature": signed}, headers={"authorization": "Bearer " + token})

    with httpx.stream("GET", url + "/stream") as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: {")]
    texts = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines]
    print("streamed", [len(text) for text in texts], digest("".join(texts)))

    heard = Heard()
    with contextlib.redirect_stdout(heard):
        password = vault(1)["password"]
    print("captured", len(heard.text), digest(heard.text), digest(password))
    shown = vault(2)

    generator = pieces()
    first = next(generator)["password"]
    second = generator.send(first)
    print("generator", len(first), digest(second["password"]), second["heard"])
    generator.close()

    try:
        refuse()
    except PermissionError as exc:
        print("refused", len(str(exc)), digest(str(exc)))

    state = json.load(open("state.json"))
    print("state", len(state["password"]), digest(state["password"]), state["count"])
    state["count"] += 1
    with open("state.json", "w") as file:
        json.dump(state, file)

    with sqlite3.connect("accounts.db") as base:
        base.execute("create table accounts (name, password, pin)")
        base.execute("insert into accounts values ('bot', ?, 4711)", [password])
        row = base.execute("select password, pin from accounts").fetchone()
    print("row", len(row[0]), row[1] + 1, digest(row[0]))

    done = subprocess.run(["sh", "-c", "cat; echo api_key=$KEY"], input=f"password={password}\n", env={**os.environ,
                          "KEY": token}, capture_output=True, text=True, check=True)
    print("program", len(done.stdout), digest(done.stdout))

    with open("notes.json", "w") as file:
        json.dump({"password": password, "token": token, "length": len(token)}, file)
    print("file", digest(open("notes.json").read()))

    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        print("pool", list(pool.map(work, [token, password])))
    submit({"claims": base64.b64encode(token.encode()).decode(), "half": token[: len(token) // 2]})
    print("environment", digest(read("row")) == digest(row[0]))
"""


def _login(handler: Handler) -> None:
    body = json.dumps({"access_token": TOKEN, "expires_in": 3600, "pin": 4711}).encode()
    handler.send(body, headers={"content-type": "application/json", "set-cookie": f"sid={COOKIE}; Path=/; HttpOnly"})


def _stream(handler: Handler) -> None:
    text = f"the key is {STREAMED}, keep it"
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    handler.send_chunks([f"data: {json.dumps(e)}\n\n".encode() for e in events], {"content-type": "text/event-stream"})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, str, str]:
    """A recorded run of the agent, the server's URL, and its output; the server has been stopped."""
    given = {"row": ROW, "printed": PRINTED, "given": GIVEN, "caught": CAUGHT}
    workplace = Workplace(tmp_path_factory.mktemp("agent"), {"GIVEN": json.dumps(given)})
    workplace.write("agent.py", AGENT)
    workplace.write("state.json", json.dumps({"password": STATE, "count": 1}))
    routes = {"/login": _login, "/stream": _stream, "/orders": lambda handler: handler.send(b"[]")}
    with RouteServer(routes) as server:
        url = server.url
        printed = workplace.record("agent.py", url).stdout
    (workplace.path / "accounts.db").unlink()
    return workplace, url, printed


def _stored(workplace: Workplace) -> bytes:
    files = [path for path in sorted((workplace.path / ".spanreplay").rglob("*")) if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


def test_r9_secrets_in_use_replay_identical_on_every_way(recorded: tuple[Workplace, str, str]) -> None:
    """Headers, streams, rows, programs, generators, exceptions, files and workers replay without revealing secrets."""
    workplace, url, printed = recorded
    done = workplace.replay("agent.py", url)
    assert (done.status, done.verdict["verdict"]) == (0, "identical"), done.stderr
    assert _without_terminal(done.stdout) == _without_terminal(printed)
    stored, said = _stored(workplace).decode("latin-1"), f"{done.stderr}{done.verdict}"
    assert not [secret for secret in SECRETS if secret in stored or secret in said]


def _without_terminal(text: str) -> list[str]:
    """The lines that the agent prints, except the one from inside a call, which is a token in a replay."""
    return [line for line in text.splitlines() if not line.startswith("the api_key=")]


def test_r9_secrets_in_use_without_the_key_are_the_cause(recorded: tuple[Workplace, str, str], tmp_path: Path) -> None:
    """Without the key, the report names the calls and fields, and says what to set."""
    workplace, url, _ = recorded
    key = tmp_path / "other.key"
    key.write_text("ab" * 32 + "\n")
    key.chmod(0o600)
    done = workplace.replay("agent.py", url, SPANREPLAY_REDACT_KEY=str(key))
    assert done.status == 3, done.stderr
    leading: list[dict[str, Any]] = [d for d in done.verdict["divergences"] if not d["downstream"]]
    assert leading[0]["causes"][0]["kind"] == "redaction"
    evidence = " ".join(cause["evidence"] for cause in leading[0]["causes"])
    assert re.search(r"value\.stdout\.text.* in call [0-9]+ \(tool:subprocess", evidence)
    assert "SPANREPLAY_REDACT_KEY" in leading[0]["hint"]
    assert "unknown:" not in done.stderr
    assert not [secret for secret in SECRETS if secret in f"{done.stderr}{done.verdict}"]
