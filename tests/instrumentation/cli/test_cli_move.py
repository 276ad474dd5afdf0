"""`spanreplay export`, `import` and `ship` move runs between places."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from click.testing import Result
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.recordings import make_incident, write_spool

Invoke = Callable[..., Result]


def test_s62_export_then_import_elsewhere_is_lossless(spanreplay: Invoke, data_dir: Path, here: Path) -> None:
    """A run that went through a file into another directory is the same run."""
    recording = make_incident()
    write_spool(data_dir, recording)
    before = spanreplay("show", "latest", "--json").stdout
    exported = spanreplay("export", "latest", "-o", "incident.replay")
    assert (exported.exit_code, exported.stdout) == (0, "incident.replay\n")
    assert (here / "incident.replay").stat().st_mode & 0o777 == 0o600
    elsewhere = {"SPANREPLAY_DIR": str(here / "elsewhere")}
    imported = spanreplay("import", "incident.replay", env=elsewhere)
    assert imported.stdout.strip() == recording.run_id
    assert spanreplay("show", "latest", "--json", env=elsewhere).stdout == before
    again = spanreplay("import", "incident.replay", "--json", env=elsewhere)
    assert json.loads(again.stdout)["run_id"] == recording.run_id
    assert len(json.loads(spanreplay("ls", "--json", env=elsewhere).stdout)) == 1
    assert spanreplay("show", "incident.replay", "--json").stdout == before


def test_s9_json_lines_are_lossless(spanreplay: Invoke, data_dir: Path, here: Path) -> None:
    """A run that went through JSON lines into another directory is the same run, and the file can be shown."""
    recording = make_incident()
    write_spool(data_dir, recording)
    before = spanreplay("show", "latest", "--json").stdout
    exported = spanreplay("export", "latest", "--jsonl")
    assert (exported.exit_code, exported.stdout) == (0, f"{recording.run_id}.jsonl\n")
    lines = [json.loads(line) for line in (here / f"{recording.run_id}.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines if "key" in line} == {call.key for call in recording.calls}
    elsewhere = {"SPANREPLAY_DIR": str(here / "elsewhere")}
    imported = spanreplay("import", f"{recording.run_id}.jsonl", env=elsewhere)
    assert imported.stdout.strip() == recording.run_id
    assert spanreplay("show", "latest", "--json", env=elsewhere).stdout == before
    assert spanreplay("show", f"{recording.run_id}.jsonl", "--json").stdout == before
    assert (
        spanreplay("export", "latest", "--jsonl", "-o", "-", env=elsewhere).stdout_bytes
        == (here / f"{recording.run_id}.jsonl").read_bytes()
    )


def test_export_names_its_file_after_the_run(spanreplay: Invoke, data_dir: Path, here: Path) -> None:
    """Without -o the file is RUN_ID.replay, and JSON says what was written."""
    recording = make_incident()
    write_spool(data_dir, recording)
    written = json.loads(spanreplay("export", recording.run_id[:16], "--json").stdout)
    path = here / f"{recording.run_id}.replay"
    assert written == {
        "run_id": recording.run_id,
        "file": path.name,
        "bytes": path.stat().st_size,
        "records": 5,
    }


def test_export_to_standard_output_is_the_file(spanreplay: Invoke, data_dir: Path, here: Path) -> None:
    """`-o -` writes exactly the bytes of the file, and `import -` reads them."""
    write_spool(data_dir, make_incident())
    spanreplay("export", "latest", "-o", "x.replay")
    piped = spanreplay("export", "latest", "-o", "-")
    assert piped.stdout_bytes == (here / "x.replay").read_bytes()
    taken = spanreplay("import", "-", input=piped.stdout_bytes, env={"SPANREPLAY_DIR": str(here / "b")})
    assert taken.exit_code == 0
    assert spanreplay("export", "latest", "-o", "-", "--json").exit_code == 2


def test_export_to_where_nothing_can_be_written_is_one_line(spanreplay: Invoke, data_dir: Path) -> None:
    """A file that cannot be written gives one line, and nothing is left half written."""
    write_spool(data_dir, make_incident())
    result = spanreplay("export", "latest", "-o", "no/such/folder/x.replay")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write no/such/folder/x.replay")


def test_import_of_something_else_is_refused(spanreplay: Invoke, here: Path) -> None:
    """A file that is not a recording is refused by name."""
    (here / "notes.txt").write_text("hello")
    result = spanreplay("import", "notes.txt")
    assert result.exit_code == 1
    assert "not a .replay file" in result.stderr
    assert spanreplay("import", "missing.replay").exit_code == 2


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, _CollectorServer)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the base class names it so
        pass


class _CollectorServer(ThreadingHTTPServer):
    requests: list[ExportTraceServiceRequest]


def test_ship_sends_what_lies_here(spanreplay: Invoke, data_dir: Path) -> None:
    """Recordings made without a collector reach it by `ship`, and are deleted here once it has them."""
    write_spool(data_dir, make_incident())
    with _CollectorServer(("127.0.0.1", 0), _Collector) as server:
        server.requests = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            result = spanreplay("ship", "--endpoint", endpoint, "--json")
        finally:
            server.shutdown()
            thread.join()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["payloads"] == 5
    spans = [s for r in server.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
    assert len(spans) == 5
    assert spanreplay("ls", "--json").stdout == "[]\n"


def test_ship_without_a_collector_says_what_to_set(spanreplay: Invoke) -> None:
    """If there is no collector to ship to, the error names the variable to set."""
    result = spanreplay("ship")
    assert result.exit_code == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in result.stderr
