"""A collector in its own process, to be killed by tests: `python -m support.collector_process DIR STORE`.

Prints its ports as one JSON line. The store is a file of (token, payload) lines, or `down`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from spanreplay.model.errors import StoreError
from spanreplay_collector.collector import Collector, CollectorSettings
from support.collector import count_spans


class FileStore:
    """Appends each load as one line, unless its token is already there; a line truncated by a kill doesn't count."""

    apart_spans = 0

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._tokens = {token for token, _ in read_file_store(path)} if path else set()

    def ping(self) -> None:
        """Answer if the file exists."""
        if self._path is None:
            raise StoreError("connection refused")

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store payloads once per token."""
        del tenant
        if self._path is None:
            raise StoreError("connection refused")
        if token not in self._tokens:
            line = json.dumps([token, [payload.hex() for payload in payloads]]).encode()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, b"\n" + line + b"\n")
            finally:
                os.close(fd)
            self._tokens.add(token)
        return sum(map(count_spans, payloads))


def read_file_store(path: Path) -> list[tuple[str, list[bytes]]]:
    """Return all complete loads of a FileStore."""
    if not path.exists():
        return []
    loads = []
    for line in path.read_bytes().split(b"\n"):
        try:
            token, payloads = json.loads(line)
        except ValueError:
            continue
        loads.append((token, [bytes.fromhex(payload) for payload in payloads]))
    return loads


async def _serve(data_dir: Path, store: FileStore) -> None:
    settings = CollectorSettings(data_dir, http_port=0, grpc_port=0, segment_bytes=20_000, load_linger_s=0.0)
    collector = Collector(settings, store)
    await collector.start()
    print(json.dumps({"http": collector.http_port, "grpc": collector.grpc_port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await collector.stop()


if __name__ == "__main__":
    where = sys.argv[2]
    asyncio.run(_serve(Path(sys.argv[1]), FileStore(None if where == "down" else Path(where))))
