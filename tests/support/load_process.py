"""One load into an embedded store in its own process: `python -m support.load_process DIR FILE`.

Prints as JSON the number of spans stored, the hash of the spans read back, and peak memory in bytes before and after
the load.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from spanreplay_collector.store.rows import derive_run_id
from spanreplay_collector.store.store import Store
from spanreplay_collector.wire import iter_filed
from support.collector import make_payload


def read_peak(pid: int | str = "self") -> int:
    """Return a process's peak memory so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def hash_spans(payloads: Iterable[bytes]) -> str:
    """Return one hash of the bytes of all spans, in order."""
    digest = hashlib.sha256()
    for payload in payloads:
        for filed in iter_filed(payload):
            digest.update(filed.span.SerializeToString())
    return digest.hexdigest()


if __name__ == "__main__":
    directory, body = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    span = next(iter_filed(body)).span
    with Store.open(f"chdb://{directory.resolve()}") as store:
        store.migrate()
        store.load("t", [make_payload(1)], "first")
        before = read_peak()
        spans = store.load("t", [body], "second")
        after = read_peak()
        stored = hash_spans(store.read_run("t", derive_run_id(span.trace_id, span.start_time_unix_nano).hex()))
    print(json.dumps({"spans": spans, "stored": stored, "before": before, "after": after}))
