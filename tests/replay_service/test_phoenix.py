"""Phoenix beside us: hardened, supervised, never blocking; verdicts reach it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model import errors
from spanreplay.model.config import PHOENIX_GRPC_PORT
from spanreplay.recording.remote.client import ServiceCatalog
from spanreplay_service import phoenix
from spanreplay_service.listen import can_listen
from spanreplay_service.phoenix import PhoenixProcess, PhoenixSettings
from support.ports import free_port
from support.runs import make_call, make_payload, make_recording, make_run_id
from support.spool_tools import wait_until
from support.up_server import UpServer, command, start_up

WAIT_S = 180.0


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.loads(response.read())


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _child_of(pid: int) -> int:
    result = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    children = result.stdout.split()
    return int(children[0]) if children else 0


def test_environment_is_hardened_and_ours_alone() -> None:
    """Phoenix is offline and harmless whatever the shell's variables, and gets none of our settings or tokens."""
    settings = PhoenixSettings(Path("/data/phoenix"), 6006, 14317)
    environ = phoenix.build_environment(
        settings,
        {
            "PATH": "/bin",
            "SPANREPLAY_TOKEN": "s3cret",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere",
            "PHOENIX_TELEMETRY_ENABLED": "true",
            "PHOENIX_ENABLE_AUTH": "true",
            "PHOENIX_SQL_DATABASE_URL": "sqlite:///x.db",
        },
    )
    assert environ == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "PHOENIX_SQL_DATABASE_URL": "sqlite:///x.db",
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": "6006",
        "PHOENIX_GRPC_PORT": "14317",
        "PHOENIX_WORKING_DIR": "/data/phoenix",
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        "PHOENIX_AGENTS_DISABLE_BASH": "true",
        "PHOENIX_AGENTS_DISABLE_WEB_ACCESS": "true",
        "PHOENIX_ENABLE_MCP_SERVER": "false",
        "PHOENIX_ALLOWED_SANDBOX_PROVIDERS": "NONE",
        "PHOENIX_ALLOWED_PROVIDERS": "NONE",
        "PHOENIX_OAUTH2_DYNAMIC_CLIENT_REGISTRATION": "disabled",
        "PHOENIX_LOG_MIGRATIONS": "false",
    }


def test_r6_phoenix_beside_tokens_has_a_login_of_its_own(tmp_path: Path) -> None:
    """Phoenix's secrets are made once, readable only by us, all different, and used only beside tokens."""
    closed = phoenix.choose_settings(tmp_path, 0, is_closed=True)
    access = closed.access
    assert access is not None
    assert phoenix.choose_settings(tmp_path, 0).access == access
    assert len({access.secret, access.token, access.password}) == 3
    assert (tmp_path / "access.json").stat().st_mode & 0o777 == 0o600
    assert access.token not in repr(closed)
    environ = phoenix.build_environment(closed, {"PHOENIX_SECRET": "theirs"})
    assert environ["PHOENIX_ENABLE_AUTH"] == "true"
    assert (environ["PHOENIX_SECRET"], environ["PHOENIX_ADMIN_SECRET"]) == (access.secret, access.token)
    opened = phoenix.build_environment(phoenix.choose_settings(tmp_path, 0), {})
    assert opened["PHOENIX_DEFAULT_ADMIN_INITIAL_PASSWORD"] == access.password
    assert "PHOENIX_ENABLE_AUTH" not in opened
    (tmp_path / "access.json").chmod(0o666)
    with pytest.raises(errors.ConfigError, match="others can write to it"):
        phoenix.choose_settings(tmp_path, 0)


@pytest.mark.slow
@pytest.mark.phoenix
def test_r6_a_phoenix_beside_tokens_is_closed_to_others(tmp_path: Path) -> None:
    """With tokens Phoenix answers nobody without a login, and no public name; verdicts and spans still reach it."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([{"tenant": "acme", "token": "tok-acme-1"}]))
    recording = make_recording(make_run_id(7))
    with start_up(tmp_path, phoenix=True, arguments=["--tokens", str(tokens)]) as running:
        running.export(make_payload(recording), token="tok-acme-1")
        token = json.loads((running.data_dir / "phoenix" / "access.json").read_text())["token"]

        def ask(path: str, **headers: str) -> int:
            request = urllib.request.Request(running.phoenix_url + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return int(response.status)
            except urllib.error.HTTPError as exc:
                return exc.code

        assert ask("/v1/projects") == 401
        assert ask("/v1/projects", Authorization="Bearer wrong") == 401
        assert ask("/v1/projects", Authorization="Bearer tok-acme-1") == 401  # a tenant's token, for its own runs only
        authorized = {"Authorization": f"Bearer {token}"}
        assert ask("/v1/projects", Host="evil.example.com", **authorized) == 421
        assert ask("/v1/projects", Host=f"localhost:{running.status['phoenix_port']}", **authorized) == 200
        wait_until(lambda: ask("/v1/projects/refunds", **authorized) == 200, "the run's project is there", WAIT_S)
        assert "password in" in running.log
        assert token not in running.log


def test_ports_are_chosen_free(tmp_path: Path) -> None:
    """A taken page port is PortTaken with remedies; a taken gRPC port is replaced by a free one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(errors.PortTaken, match=str(port)) as caught:
            phoenix.choose_settings(tmp_path, port)
        assert "--no-phoenix" in caught.value.hint
    with contextlib.ExitStack() as stack:
        if can_listen("127.0.0.1", PHOENIX_GRPC_PORT):
            stack.enter_context(socket.create_server(("127.0.0.1", PHOENIX_GRPC_PORT)))
        chosen = phoenix.choose_settings(tmp_path, 0)
    assert chosen.port > 0
    assert chosen.grpc_port not in (0, PHOENIX_GRPC_PORT)


def test_phoenix_that_keeps_falling_is_given_up(tmp_path: Path) -> None:
    """A Phoenix that ends at once is started five times more, each time with a message, then left."""
    said: list[str] = []

    async def run() -> bool:
        process = PhoenixProcess(
            PhoenixSettings(tmp_path, free_port(), 1),
            said.append,
            command=(sys.executable, "-c", "raise SystemExit('no database')"),
            backoff_s=(0.001, 0.001),
        )
        await process.start()
        try:
            return await process.wait_ready(WAIT_S)
        finally:
            await process.stop()

    assert asyncio.run(run()) is False
    assert len(said) == 6
    assert all("phoenix.log" in line for line in said)
    assert "going on without it" in said[-1]
    assert (tmp_path / "phoenix.log").read_text(encoding="utf-8").count("no database") == 6


def test_a_phoenix_that_will_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ignores SIGTERM is killed with its children, and stop returns."""
    monkeypatch.setattr(phoenix, "PHOENIX_STOP_S", 0.2)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"

    async def run() -> int:
        process = PhoenixProcess(
            PhoenixSettings(tmp_path, free_port(), 1),
            lambda _: None,
            command=(sys.executable, "-c", code),
        )
        await process.start()
        await asyncio.to_thread(wait_until, lambda: "deaf" in process.log_path.read_text(), "it is deaf")
        await process.stop()
        return process.pid

    assert asyncio.run(run()) == 0


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above its limit the log of Phoenix is set aside at the next start."""
    monkeypatch.setattr(phoenix, "PHOENIX_LOG_BYTES_MAX", 10)
    process = PhoenixProcess(PhoenixSettings(tmp_path, 1, 2), lambda _: None)
    process.log_path.write_text("x" * 11, encoding="utf-8")
    with process._open_log() as log:
        log.write(b"new")
    assert process.log_path.read_text(encoding="utf-8") == "new"
    assert (tmp_path / "phoenix.log.1").read_text(encoding="utf-8") == "x" * 11
    assert process.log_path.stat().st_mode & 0o777 == 0o600


def test_phoenix_ends_when_its_parent_does() -> None:
    """When the other end of its standard input closes, as with a killed parent, the child ends."""
    code = (
        "import threading\nfrom spanreplay_service.phoenix_child import end_with_parent\n"
        "end_with_parent()\nthreading.Event().wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127/8 on loopback")
def test_r6_phoenix_grpc_listens_on_loopback_only() -> None:
    """The port that Phoenix opens without a token on every interface is restricted to 127.0.0.1."""
    code = (
        "import asyncio, grpc.aio, socket\n"
        "from spanreplay_service.phoenix_child import keep_grpc_on_loopback\n"
        "async def open():\n"
        "    server = grpc.aio.server()\n"
        "    port = server.add_insecure_port('[::]:0')\n"
        "    await server.start()\n"
        "    try:\n"
        "        with socket.create_server(('127.0.0.2', port)): print('loopback only')\n"
        "    except OSError: print('everywhere')\n"
        "    await server.stop(None)\n"
        "asyncio.run(open())\n"
        "keep_grpc_on_loopback()\n"
        "asyncio.run(open())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert result.stdout.split("\n")[:2] == ["everywhere", "loopback only"]


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ({}, {}),
        ({"divergences": None}, {}),
        ({"divergences": ["x", 1]}, {}),
        ({"divergences": [{"kind": "a", "downstream": True}]}, {"kind": "a", "downstream": True}),
        ({"divergences": [{"kind": "a", "downstream": True}, {"kind": "b"}]}, {"kind": "b"}),
    ],
    ids=["none", "null", "garbage", "downstream", "cause"],
)
def test_the_first_cause_is_what_is_shown(report: dict[str, Any], found: dict[str, Any]) -> None:
    """The annotation is about the first divergence that is not downstream of another."""
    assert phoenix.find_first_divergence(report) == found


def test_without_arize_phoenix_everything_else_runs(tmp_path: Path) -> None:
    """If arize-phoenix is not installed, `up` says so once and otherwise works."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\nreal = m.version\n"
        "def version(name):\n"
        "    if name == 'arize-phoenix': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n",
        encoding="utf-8",
    )
    with start_up(tmp_path, phoenix=True, environ={"PYTHONPATH": str(tmp_path)}) as running:
        assert running.phoenix_url == ""
        running.export(make_payload(make_recording()))
        with ServiceCatalog(running.endpoint) as client:
            assert client.load(make_run_id()) == make_recording()
    assert running.log.count("arize-phoenix is not installed") == 1


def test_a_taken_phoenix_port_is_one_line(tmp_path: Path) -> None:
    """If something listens on Phoenix's port, `up` ends with status 1 and names remedies."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(AssertionError, match=r"ended with 1 [^\n]*\nerror: port \d+ [^\n]*\nhint: [^\n]*\n$"),
    ):
        start_up(tmp_path, phoenix=True, arguments=("--phoenix-port", str(listener.getsockname()[1])))


@pytest.mark.slow
@pytest.mark.phoenix
def test_a_signal_while_starting_stops_everything(tmp_path: Path) -> None:
    """Ctrl-C while Phoenix is starting ends `up` with status 1, and Phoenix with it."""
    port = free_port()
    with subprocess.Popen(
        command(tmp_path / "server", ("--phoenix-port", str(port)), phoenix=True),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "waiting for Phoenix" in process.stderr.readline()
        child = _child_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 1
        assert process.stdout.read() == ""
        assert process.stderr.read() == "stopped before everything was ready\n"
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert can_listen("127.0.0.1", port)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpServer]:
    """`spanreplay up` with a real Phoenix."""
    with start_up(tmp_path_factory.mktemp("up-phoenix"), phoenix=True) as running:
        yield running


@pytest.mark.slow
@pytest.mark.phoenix
def test_a_verdict_is_seen_in_phoenix(server: UpServer) -> None:
    """A run sent to us appears in Phoenix, with the verdict of its replay on its root span."""
    recording = make_recording(make_run_id(7))
    server.export(make_payload(recording))
    report = {
        "schema": "divergence/1",
        "verdict": "diverged",
        "divergences": [
            {
                "kind": "changed_call",
                "message": "messages[2].content differs",
                "recorded_span_id": make_call(recording.run_id, 1).span_id,
            }
        ],
    }
    with ServiceCatalog(server.endpoint) as client:
        url = client.report_replay(
            run_id=recording.run_id, replay_run_id=make_run_id(8), verdict="diverged", report=json.dumps(report)
        )
        assert url == client.phoenix_url(recording.run_id)
    assert url == f"{server.phoenix_url}/redirects/spans/{recording.root.span_id}"

    spans = (recording.root.span_id, recording.calls[0].span_id)
    query = "&".join(f"span_ids={s}" for s in spans)
    found: dict[tuple[str, str], str] = {}

    def is_shown() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):  # the project exists once its first span does
            answer = _get(f"{server.phoenix_url}/v1/projects/refunds/span_annotations?{query}")
            found.update({(a["span_id"], a["name"]): a["result"]["label"] for a in answer["data"]})
        return len(found) == 2

    wait_until(is_shown, "both annotations are in Phoenix", WAIT_S)
    assert found == {(spans[0], "replay.verdict"): "diverged", (spans[1], "replay.divergence"): "changed_call"}


@pytest.mark.slow
@pytest.mark.phoenix
def test_a_killed_phoenix_comes_back_and_harms_nothing(server: UpServer) -> None:
    """After Phoenix is killed, everything else answers meanwhile, and it is started again."""
    assert _is_ready(server.phoenix_url)
    victim = _child_of(server.process.pid)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not _is_ready(server.phoenix_url), "Phoenix is gone", WAIT_S)
    recording = make_recording(make_run_id(9))
    server.export(make_payload(recording))
    with ServiceCatalog(server.endpoint) as client:
        assert client.load(recording.run_id) == recording
        with pytest.raises(errors.ServiceError, match="Phoenix"):
            client.report_replay(run_id=recording.run_id, replay_run_id="", verdict="identical", report="{}")
    wait_until(lambda: _is_ready(server.phoenix_url), "Phoenix is back", WAIT_S)
    assert _child_of(server.process.pid) not in (0, victim)
    assert "Phoenix ended" in server.log


@pytest.mark.slow
@pytest.mark.phoenix
def test_no_phoenix_outlives_a_killed_up(server: UpServer) -> None:
    """When `up` is killed with SIGKILL, its Phoenix ends too and releases its port."""
    assert _is_ready(server.phoenix_url)
    server.kill()
    wait_until(lambda: can_listen("127.0.0.1", int(server.status["phoenix_port"])), "the port is free", WAIT_S)
