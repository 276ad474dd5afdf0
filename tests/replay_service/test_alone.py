"""`spanreplay collect`, `migrate` and `serve` as separate processes over a ClickHouse server, as in a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from spanreplay.model.errors import AccessDenied, StoreError
from spanreplay.recording.remote.client import ServiceCatalog
from spanreplay_collector.options import add_credentials
from spanreplay_collector.store.deferred import DeferredStore
from spanreplay_collector.store.engine import parse_address
from spanreplay_collector.store.store import Store
from support.certificates import make_certificates
from support.runs import make_payload, make_recording, make_run_id
from support.stores import Front, fresh_chdb_url, fresh_database

MAIN = (sys.executable, "-c", "from spanreplay.cli import main; main()")
TOKEN = "one-of-the-team"


@contextmanager
def _running(directory: Path, environ: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    log = (directory / f"{arguments[0]}.log").open("ab")
    process = subprocess.Popen(
        [*MAIN, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **environ},
        cwd=directory,
    )
    try:
        yield process
    finally:
        log.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _read_ready(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    ready: dict[str, str] = json.loads(process.stdout.readline())
    return ready


def _get(port: str, path: str, token: str = "", *, host: str = "") -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if host:
        headers["host"] = host
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def test_the_parts_start_in_any_order_and_a_run_comes_back(tmp_path: Path) -> None:
    """A collector accepts a run before the store has tables; after migration the service returns it; SIGTERM ends both.

    User and password come from the environment, as from a secret, and hold characters that a URL can't.
    """
    front = Front()
    url = urlsplit(front.url(fresh_database()))
    environ = {
        "SPANREPLAY_STORE": f"{url.scheme}://{url.hostname}:{url.port}{url.path}",
        "SPANREPLAY_STORE_USER": unquote(url.username or ""),
        "SPANREPLAY_STORE_PASSWORD": unquote(url.password or ""),
        "SPANREPLAY_TOKEN": TOKEN,
    }
    listen = ("--host", "0.0.0.0", "--allow-plaintext", "--json")
    recording = make_recording(make_run_id(1), calls=50)
    collect = ("collect", "--data-dir", str(tmp_path / "log"), "--http-port", "0", "--grpc-port", "0", *listen)
    serve = ("serve", "--port", "0", *listen)
    try:
        with _running(tmp_path, environ, *collect) as collector, _running(tmp_path, environ, *serve) as service:
            port = _read_ready(collector)["http_port"]
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/traces",
                make_payload(recording),
                {"content-type": "application/x-protobuf", "authorization": f"Bearer {TOKEN}"},
            )
            with urllib.request.urlopen(request, timeout=30) as response:
                assert response.status == 200
            probes = {path: _get(port, path) for path in ("/healthz", "/readyz/log", "/readyz")}
            assert probes == {"/healthz": 200, "/readyz/log": 200, "/readyz": 503}, "it takes spans in without a store"
            assert _get(port, "/healthz", host="spanreplay-collector.spanreplay.svc.example.com:4318") == 200
            assert (_get(port, "/metrics"), _get(port, "/metrics", TOKEN)) == (401, 200)

            done = subprocess.run(
                [*MAIN, "migrate", "--wait", "60"], env={**os.environ, **environ}, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
            endpoint = _read_ready(service)["endpoint"].replace("0.0.0.0", "127.0.0.1")

            smoke = {**environ, "SPANREPLAY_ENDPOINT": endpoint, "SPANREPLAY_DIR": str(tmp_path / "smoke")}
            smoked = subprocess.run(
                [sys.executable, "-m", "spanreplay_service.smoke"],
                env={**os.environ, **smoke, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (smoked.returncode, smoked.stdout.splitlines()[-1:]) == (0, ["replayed: identical"]), smoked.stderr

            assert _get(port, "/readyz") == 200
            collector.send_signal(signal.SIGTERM)  # its last act is to load everything acknowledged
            assert collector.wait(60) == 0
            with ServiceCatalog(endpoint, token=TOKEN) as catalog:
                assert catalog.load(recording.run_id) == recording
            with ServiceCatalog(endpoint, token="another") as stranger, pytest.raises(AccessDenied):
                stranger.load(recording.run_id)
            service.send_signal(signal.SIGTERM)
            assert service.wait(60) == 0
        for name in ("collect.log", "serve.log"):
            log = (tmp_path / name).read_text(encoding="utf-8")
            assert "Traceback" not in log
            assert unquote(url.password or "-") not in log
    finally:
        front.kill()


def test_a_run_comes_back_through_tls(tmp_path: Path) -> None:
    """Both servers use TLS, as the chart starts them; the smoke test trusts their CA by its pod's variables."""
    front = Front()
    url = urlsplit(front.url(fresh_database()))
    files = make_certificates(tmp_path / "tls")
    environ = {"SPANREPLAY_STORE": url.geturl(), "SPANREPLAY_TOKEN": TOKEN}
    tls = ("--tls-cert", str(files.server_cert), "--tls-key", str(files.server_key), "--host", "0.0.0.0", "--json")
    collect = ("collect", "--data-dir", str(tmp_path / "log"), "--http-port", "0", "--grpc-port", "0", *tls)
    try:
        subprocess.run([*MAIN, "migrate"], env={**os.environ, **environ}, capture_output=True, check=True)
        with (
            _running(tmp_path, environ, *collect) as collector,
            _running(tmp_path, environ, "serve", "--port", "0", *tls) as service,
        ):
            asked = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://127.0.0.1:{_read_ready(collector)['http_port']}",
                "SPANREPLAY_ENDPOINT": f"https://127.0.0.1:{_read_ready(service)['endpoint'].rpartition(':')[2]}",
                "SPANREPLAY_DIR": str(tmp_path / "smoke"),
                "SPANREPLAY_TOKEN": TOKEN,
            }
            trust = {"SSL_CERT_FILE": str(files.ca), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(files.ca)}
            smoke = [sys.executable, "-m", "spanreplay_service.smoke"]
            for more, status in ((trust, 0), ({}, 1)):
                done = subprocess.run(
                    smoke,
                    env={**os.environ, **asked, **more},
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == status, done.stderr
                assert TOKEN not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    finally:
        front.kill()


def test_a_store_of_a_newer_release_is_waited_for_and_refuses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector rolled back to before a migration keeps spans in its log; any other error would set them aside."""
    url = fresh_chdb_url()
    with Store.open(url) as store:
        store.migrate()
    monkeypatch.setattr("spanreplay_collector.store.migrate.read_migrations", list)
    deferred = DeferredStore(url)
    with pytest.raises(StoreError, match="this spanreplay knows 0"):
        deferred.load("default", [make_payload(make_recording(make_run_id(1)))], "token")


def test_credentials_of_the_environment_survive_any_character() -> None:
    """User and password from the environment are kept unchanged; those in the URL itself win."""
    environ = {"SPANREPLAY_STORE_USER": "a@b", "SPANREPLAY_STORE_PASSWORD": "p/w:%20#?é"}
    address = parse_address(add_credentials("https://store.example:8443/traces", environ))
    assert (address.user, address.password) == ("a@b", "p/w:%20#?é")
    assert (address.host, address.port, address.database) == ("store.example", 8443, "traces")
    own = "http://me:secret@store.example/traces"
    assert add_credentials(own, environ) == own
    assert add_credentials("chdb:///var/lib/x", environ) == "chdb:///var/lib/x"


@pytest.mark.parametrize("store", [(), ("--store", "chdb:///tmp/x")], ids=["none", "embedded"])
@pytest.mark.parametrize("command", ["collect", "serve"])
def test_a_part_alone_needs_a_server(command: str, store: tuple[str, ...], tmp_path: Path) -> None:
    """Without a ClickHouse server a part ends with one line that names an alternative."""
    done = subprocess.run([*MAIN, command, *store], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs a ClickHouse server" in done.stderr
    assert "spanreplay up" in done.stderr
