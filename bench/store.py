"""Finding and reading runs in a store with a million spans, and how fast it takes them.

One recorded run is sent again and again under other ids, users and times, over one OTLP/HTTP connection. Then a ticket
is looked up with the command, and runs of 100 spans are read as a replay reads them.
Run: python -m bench.store (SPANREPLAY_BENCH_SPANS=10000000: so many spans instead)
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, main, make_text
from bench.ticket import BIN, _run, _up

SPANS: Final = int(os.environ.get("SPANREPLAY_BENCH_SPANS", "1000000"))
CALLS: Final = 19
"""Calls of a run besides the root."""
READ_CALLS: Final = 99
READ_BYTES: Final = 10_000
"""Size of each result in the runs that are read: 99 are about 1 MB."""
READ_RUNS: Final = 40
RUNS_A_REQUEST: Final = 25
BETWEEN_NS: Final = 3_000_000_000
"""Time from the start of one run to that of the next."""
GOAL_LS_S: Final = 1.0
GOAL_STORE_MS: Final = 25.0
GOAL_BUNDLE_MS: Final = 1.0
REPEATS: Final = 5
WAIT_S: Final = 3600


def _record(folder: Path, work: Callable[[], None]) -> str:
    import spanreplay

    os.environ["SPANREPLAY_USER_ID"] = "u-template"
    with spanreplay.record(name="service", directory=folder) as block:
        work()
    del os.environ["SPANREPLAY_USER_ID"]
    return block.run_id


def _read_template(folder: Path) -> Any:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from spanreplay.recording.spool.directory import iter_spool_files
    from spanreplay.recording.spool.frames import scan_file
    from spanreplay.recording.spool.merge import merge_requests

    payloads = [frame.payload for path in iter_spool_files(folder) for frame in scan_file(path)]
    request = ExportTraceServiceRequest()
    request.ParseFromString(merge_requests(payloads))
    return request


class _Copies:
    """Copies of one recorded run, each with ids, a user and times of its own."""

    def __init__(self, template: Any, seed: int) -> None:
        self._data = template.SerializeToString()
        spans = [span for rs in template.resource_spans for ss in rs.scope_spans for span in ss.spans]
        self._trace = spans[0].trace_id
        (self._run_id,) = {
            a.value.string_value for span in spans for a in span.attributes if a.key == "spanreplay.run_id"
        }
        self._spans = [span.span_id for span in spans]
        self._times = sorted({t for span in spans for t in (span.start_time_unix_nano, span.end_time_unix_nano)})
        self._rng = random.Random(seed)  # noqa: S311 - no key
        self.count = len(spans)

    def make(self, user: str, start_ns: int) -> tuple[str, bytes]:
        """Return the run's id, and the request that brings it."""
        rng = self._rng
        run_id = f"{rng.getrandbits(128):032x}"
        data = self._data.replace(self._run_id.encode(), run_id.encode()).replace(self._trace, rng.randbytes(16))
        data = data.replace(b"u-template", user.encode())
        for each in self._spans:
            data = data.replace(each, rng.randbytes(8))
        shift = start_ns - self._times[0]
        for at in self._times:
            data = data.replace(at.to_bytes(8, "little"), (at + shift).to_bytes(8, "little"))
        return run_id, data


def _post(connection: HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/v1/traces", body, {"content-type": "application/x-protobuf"})
    response = connection.getresponse()
    response.read()
    if response.status == 429:  # says when to come back
        time.sleep(float(response.headers.get("retry-after") or 1))
        _post(connection, body)
    elif response.status != 200:
        raise RuntimeError(f"the collector answered {response.status}")


def _fill(connection: HTTPConnection, copies: _Copies, runs: int, until_ns: int) -> Iterator[float]:
    """Send the runs; yield how long each request took until it was acknowledged, in seconds."""
    for first in range(0, runs, RUNS_A_REQUEST):
        numbers = range(first, min(first + RUNS_A_REQUEST, runs))
        made = (copies.make(f"u-{number % 100_000_000:08d}", until_ns - number * BETWEEN_NS)[1] for number in numbers)
        body = b"".join(made)  # fields of a repeated message: joined requests are one request
        began = time.perf_counter()
        _post(connection, body)
        yield time.perf_counter() - began


def _await(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        if time.monotonic() > deadline:
            raise RuntimeError("the store does not show what was acknowledged")
        time.sleep(0.1)


def _time_ls(folder: Path, environ: dict[str, str], user: str, at_ns: int) -> list[float]:
    minute = time.strftime("%Y-%m-%dT%H:%M", time.localtime(at_ns / 1e9))
    command = [str(BIN / "spanreplay"), "ls", "--user", user, "--around", minute, "--tool", "delete_accounts", "--json"]
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        told = json.loads(_run(folder, environ, *command))
        times.append(time.perf_counter() - began)
        if [row["user_id"] for row in told] != [user]:
            raise RuntimeError(f"{len(told)} runs were found")
    return times


def _time_reads(load: Callable[[str], Any], run_ids: Sequence[str]) -> list[float]:
    """Return the milliseconds of each read."""
    times = []
    for run_id in run_ids:
        began = time.perf_counter()
        recording = load(run_id)
        times.append((time.perf_counter() - began) * 1000)
        if len(recording.calls) != READ_CALLS:
            raise RuntimeError(f"{len(recording.calls)} calls were read")
    return times


def _make_templates(folder: Path) -> tuple[_Copies, _Copies, Path]:
    """Return what fills the store, what is read, and the `.replay` file of the latter."""
    import spanreplay
    from spanreplay.recording.spool import SpoolCatalog

    @spanreplay.boundary("tool", name="quote", effect="read")
    def quote(symbol: str, amount: int) -> dict[str, float]:
        return {"price": 190.25 + amount}

    @spanreplay.boundary("tool", name="delete_accounts", effect="write")
    def delete_accounts(names: list[str]) -> int:
        return len(names)

    @spanreplay.boundary("tool", name="fetch", effect="read")
    def fetch(number: int) -> str:
        return make_text(random.Random(number), READ_BYTES)  # noqa: S311 - no key

    def short() -> None:
        for number in range(CALLS - 1):
            quote("ACME", number)
        delete_accounts(["a", "b"])

    def large() -> None:
        for number in range(READ_CALLS):
            fetch(number)

    _record(folder / "short", short)
    run_id = _record(folder / "large", large)
    bundle = folder / "run.replay"
    bundle.write_bytes(SpoolCatalog(folder / "large").export(run_id))
    return _Copies(_read_template(folder / "short"), 1), _Copies(_read_template(folder / "large"), 2), bundle


def measure() -> Sequence[Figure]:
    """Fill a store of its own, then look up tickets and read runs."""
    from spanreplay.recording.bundle import load_file
    from spanreplay.recording.remote.client import ServiceCatalog

    with tempfile.TemporaryDirectory() as name, _up(Path(name) / "server") as settings:
        folder = Path(name)
        short, large, bundle = _make_templates(folder)
        plain = {"PATH": f"{BIN}{os.pathsep}{os.defpath}", "HOME": name}
        here = {**plain, "SPANREPLAY_ENDPOINT": settings["SPANREPLAY_ENDPOINT"]}
        host = settings["OTEL_EXPORTER_OTLP_ENDPOINT"].rpartition("//")[2]
        connection = HTTPConnection(host, timeout=120)
        now_ns = time.time_ns()
        run_ids = []
        for number in range(READ_RUNS):
            run_id, body = large.make(f"u-large-{number:02d}", now_ns - number * BETWEEN_NS)
            run_ids.append(run_id)
            _post(connection, body)
        runs = (SPANS - READ_RUNS * large.count) // short.count
        began = time.perf_counter()
        acknowledged = sorted(_fill(connection, short, runs, now_ns - BETWEEN_NS))
        sent_s = time.perf_counter() - began
        last = f"u-{(runs - 1) % 100_000_000:08d}"
        with ServiceCatalog(settings["SPANREPLAY_ENDPOINT"], timeout_s=60.0) as catalog:
            from spanreplay.recording.catalog import RunQuery

            _await(lambda: len(catalog.search(RunQuery(user_id=last))) == 1)
            shown_s = time.perf_counter() - began
            middle = runs // 2
            found = _time_ls(folder, here, f"u-{middle:08d}", now_ns - BETWEEN_NS - middle * BETWEEN_NS)
            stored = _time_reads(catalog.load, run_ids)
        bundled = _time_reads(lambda _: load_file(bundle), run_ids)
        size = subprocess.run(["du", "-sm", str(folder / "server")], capture_output=True, text=True, check=True).stdout
    spans = runs * short.count + READ_RUNS * large.count
    read = f"{READ_CALLS + 1} spans, {READ_CALLS * READ_BYTES / 1e6:.1f} MB"
    p99_ms = acknowledged[int(len(acknowledged) * 0.99)] * 1000
    taken = f"{len(short._data) / short.count:,.0f} bytes each; one client makes and sends them; {size.split()[0]} MB"
    return [
        Figure(
            f"ls by user, minute and tool, {SPANS:,} spans stored",
            statistics.median(found),
            "s",
            GOAL_LS_S,
            f"the command, wall clock, median of {REPEATS}, worst {max(found):.2f} s; {runs:,} runs",
        ),
        Figure(
            f"read a run of 100 spans and 1 MB from the store, {SPANS:,} spans stored",
            statistics.median(stored),
            "ms",
            GOAL_STORE_MS,
            f"{read}, over gRPC, verified; p50 of {READ_RUNS} runs, worst {max(stored):.0f} ms",
        ),
        Figure(
            "read a run of 100 spans and 1 MB from its .replay file",
            statistics.median(bundled),
            "ms",
            GOAL_BUNDLE_MS,
            f"{read}, verified; p50 of {READ_RUNS} reads",
        ),
        Figure("spans acknowledged a second, small", spans / sent_s, "spans/s", None, taken, is_more_better=True),
        Figure("spans queryable a second, small", spans / shown_s, "spans/s", None, taken, is_more_better=True),
        Figure("acknowledgement of 500 small spans, p99", p99_ms, "ms", None, "one request at a time"),
    ]


if __name__ == "__main__":
    main(measure)
