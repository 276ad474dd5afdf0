"""A process that loads batches into a store and may kill itself meanwhile.

python -m support.store_loader load URL BATCHES DELAY_S   prints `ready`, then the number of each loaded batch
python -m support.store_loader check URL BATCHES ACKED    checks, reloads everything, checks again
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import Recording
from spanreplay.recording.catalog import RunQuery, summarize
from spanreplay.recording.otlp import otlp
from spanreplay_collector.store.store import Store
from support.runs import make_payload, make_recording, make_run_id

TENANT = "acme"
CALLS = 20


def make_batch(number: int) -> Recording:
    """Return the run of a batch; every third run is larger than one blob."""
    extra = {"note": "x" * (2_000_000 if number % 3 == 0 else 700)}
    return make_recording(make_run_id(number), calls=CALLS, env={"git_sha": f"{number:040x}", **extra})


def load_batch(store: Store, number: int) -> None:
    """Load a batch under its token."""
    store.load(TENANT, [make_payload(make_batch(number))], f"batch-{number}")


def check_batches(store: Store, numbers: range) -> None:
    """Assert that these batches are stored completely."""
    for number in numbers:
        expected = make_batch(number)
        payloads = store.read_run(TENANT, expected.run_id)
        assert len(payloads) == CALLS + 1, f"batch {number} has {len(payloads)} spans"
        assert otlp.build_recording(map(ExportTraceServiceRequest.FromString, payloads)) == expected
        assert store.search(TENANT, RunQuery(run_id_prefix=expected.run_id)) == [summarize(expected)]


def check_reload(store: Store, batches: int, acked: int) -> None:
    """Assert that acknowledged batches survived, and that after reloading each exists exactly once."""
    check_batches(store, range(acked))
    for number in range(batches):
        load_batch(store, number)
    check_batches(store, range(batches))
    with store._engine.client() as client:
        # Without FINAL: the tokens must prevent duplicate rows from being written, not only from being read.
        for table in ("spans", "boundaries"):
            (row,) = client.query(f"SELECT count() FROM {table}").result_rows
            assert row[0] == batches * (CALLS + 1), f"{table} has {row[0]} rows"


def main(verb: str, url: str, batches: int, last: str) -> None:
    """Load or check."""
    with Store.open(url) as store:
        store.migrate()
        if verb == "check":
            check_reload(store, batches, int(last))
            return
        print("ready", flush=True)
        timer = threading.Timer(float(last), os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
        for number in range(batches):
            load_batch(store, number)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
