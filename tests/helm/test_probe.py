"""The probe of inference pods: ready, warm, and the test of a release."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from spanreplay_kernels import probe

Answer = Callable[[dict[str, Any]], tuple[int, bytes, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Start a completions server that gives these answers; return its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                """Write nothing to standard error."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content, line = answer(body) if self.path == "/v1/completions" else (404, b"", "")
                self.send_response(status)
                if line:
                    self.send_header(probe.HEADER, line)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _completion(text: str = "three") -> bytes:
    return json.dumps({"choices": [{"text": text}]}).encode()


NOT_READY: dict[str, tuple[Answer, list[str], str]] = {
    "an error": (lambda body: (500, b"", "x"), [], "answers 500"),
    "no completion": (lambda body: (200, b"{}", "x"), [], "no completion"),
    "no line": (lambda body: (200, _completion(), ""), ["--header"], "the kernels are not at work"),
    "another line": (lambda body: (200, _completion(), "plan=2"), ["--expect=plan=1"], "expected 'plan=1'"),
}


@pytest.mark.parametrize("case", NOT_READY)
def test_h3_a_pod_is_not_ready(case: str, serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    """A server with wrong answers, or with other kernels, is not ready; one line says why."""
    answer, options, message = NOT_READY[case]
    assert probe.main(["ready", f"--url={serve(answer)}", "--model=m", *options]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_h3_a_pod_is_ready_when_the_line_is_the_expected_one(serve: Callable[[Answer], str]) -> None:
    """Readiness asks one greedy, seeded completion of one token for the expected line; a stopped server isn't ready."""
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes, str]:
        asked.append(body)
        return 200, _completion(), "plan=1"

    url = serve(answer)
    assert probe.main(["ready", f"--url={url}", "--model=m", "--header", "--expect=plan=1"]) == 0
    assert [(body["model"], body["max_tokens"], body["temperature"]) for body in asked] == [("m", 1, 0)]
    assert probe.main(["warm-up", f"--url={url}", "--model=m", "--tokens=1,16,128"]) == 0
    assert [len(body["prompt"].split()) for body in asked[1:]] == [1, 16, 128]
    assert probe.main(["ready", "--url=http://127.0.0.1:1", "--model=m"]) == 1


@pytest.mark.parametrize("is_invariant", [True, False], ids=["one completion", "two completions"])
def test_h3_the_test_of_a_release_sees_an_answer_that_depends_on_the_load(
    is_invariant: bool, serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With equal prompts among other requests, one deviating completion of many is found."""
    equal: list[str] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes, str]:
        if body["prompt"] == probe.PROMPT:
            equal.append("x")
            if not is_invariant and len(equal) == 7:
                return 200, _completion("four"), "plan=1"
        return 200, _completion("three"), "plan=1"

    status = probe.main(
        ["invariance", f"--url={serve(answer)}", "--model=m", "--prompts=20", "--header", "--parallel=1"]
    )
    assert len(equal) == 20
    assert status == (0 if is_invariant else 1)
    said = capsys.readouterr()
    assert re.search("one completion" if is_invariant else r"20 equal prompts have 2 completions", said.out + said.err)
