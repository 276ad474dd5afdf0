"""ClickHouse's HTTP interface on chDB's engine, for tests: as much as an unmodified clickhouse-connect needs.

It proves that the store speaks the wire protocol and handles a server's errors. It can't prove what a cluster
does: replication, Distributed tables, users and quotas.

Run as a process, since chDB allows one data directory per process:
    python -m support.clickhouse_front DIRECTORY PASSWORD [cluster]
prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import chdb
import lz4.frame  # type: ignore[import-untyped]  # lz4 ships no types
import zstandard

from support.clickhouse_cluster import CONFIG, as_one_shard, look_at_twin

BODY_BYTES_MAX: Final = 512 * 1024 * 1024
WRONG_PASSWORD: Final = 516
_STATUS_OF_CODE: Final = {WRONG_PASSWORD: 403, 60: 404, 81: 404, 47: 400, 62: 400, 241: 500}
_INSERT: Final = re.compile(rb"\s*INSERT\s+INTO\s", re.IGNORECASE)
_FORMAT: Final = re.compile(rb"\bFORMAT\s+(\w+)[ \t;]*(?:\r?\n|$)", re.IGNORECASE)
_CODE: Final = re.compile(r"Code: (\d+)\.")
_FIELD_NAME: Final = re.compile(rb'name="([^"]+)"')
# Transport parameters; all others are query settings.
_TRANSPORT: Final = frozenset(
    {
        "buffer_size",
        "client_protocol_version",
        "compress",
        "database",
        "decompress",
        "default_format",
        "enable_http_compression",
        "http_headers_progress_interval_ms",
        "http_zlib_compression_level",
        "password",
        "query",
        "query_id",
        "quota_key",
        "role",
        "send_progress_in_http_headers",
        "session_check",
        "session_id",
        "session_timeout",
        "stacktrace",
        "user",
        "wait_end_of_query",
    }
)


@dataclass
class Statement:
    """The statement of one HTTP request."""

    sql: bytes
    inserted: bytes
    database: str
    settings: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    format: str = "TabSeparated"


@dataclass(frozen=True)
class Answer:
    """The engine's answer."""

    body: bytes = b""
    format: str = ""
    summary: Mapping[str, str] = field(default_factory=dict)


class EngineError(Exception):
    """The engine refused a statement; carries ClickHouse's code."""

    def __init__(self, text: str) -> None:
        start = text.rfind("Code: ")
        super().__init__(text[start:].strip() if start >= 0 else text.strip())
        found = _CODE.search(str(self))
        self.code = int(found[1]) if found else 1002


class Handles:
    """A pool of engine handles, one per concurrent query."""

    def __init__(self, directory: Path, *, is_cluster: bool = False) -> None:
        self._directory = str(directory)
        self.is_cluster = is_cluster
        if is_cluster:
            config = directory / "cluster.xml"
            config.write_text(CONFIG)
            self._directory += f"?config-file={config}"
        self._kept = _connect(self._directory)  # the engine stops when its last handle is closed
        self._free: list[Any] = []
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[Any]:
        """Yield a handle for exclusive use."""
        with self._lock:
            handle = self._free.pop() if self._free else None
        if handle is None:
            handle = _connect(self._directory)
        try:
            yield handle
        except EngineError:
            # If a query fails after its first output, its handle would return that output for the next query.
            handle.close()
            raise
        with self._lock:
            self._free.append(handle)


def _connect(directory: str) -> Any:
    return chdb.connect(directory)  # type: ignore[no-untyped-call]  # chDB's own signature


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def execute(handle: Any, statement: Statement, *, is_cluster: bool = False) -> Answer:
    """Run one statement with its database and settings, which are reset afterwards. Raises: EngineError."""
    applied: list[str] = []
    try:
        if statement.database:
            handle.query(f"USE `{statement.database}`")
        for name, value in statement.settings.items():
            handle.query(f"SET {name} = {_quote(value)}")
            applied.append(name)
        if is_cluster and not statement.inserted:
            sql = statement.sql.decode()
            look_at_twin(sql, statement.parameters)
            statement.sql = as_one_shard(handle, sql, statement.database, statement.parameters).encode()
        if _INSERT.match(statement.sql) and statement.inserted:
            return _insert(handle, statement)
        return _query(handle, statement)
    except RuntimeError as exc:
        raise EngineError(str(exc)) from exc
    finally:
        for name in applied:
            handle.query(f"SET {name} = DEFAULT")
        handle.query("USE default")


def _insert(handle: Any, statement: Statement) -> Answer:
    found = _FORMAT.search(statement.sql)
    if found is None:
        raise EngineError("Code: 62. DB::Exception: INSERT without FORMAT (SYNTAX_ERROR)")
    inserter = handle.send_insert(statement.sql[: found.start()].decode(), found[1].decode())
    inserter.append(statement.inserted)
    done = inserter.finish()
    rows = str(done.rows_written)
    return Answer(summary={"written_rows": rows, "written_bytes": str(done.bytes_written), "read_rows": rows})


def _query(handle: Any, statement: Statement) -> Answer:
    formats = _FORMAT.findall(statement.sql)
    name = formats[-1].decode() if formats else statement.format
    result = handle.query(statement.sql.decode(), name, params=statement.parameters or None)
    body = result.bytes() or b""
    # An empty result set still has a format, which tells clients that it isn't a command.
    is_result = bool(body) or re.match(rb"\s*(SELECT|WITH|SHOW|DESC|EXPLAIN|EXISTS)", statement.sql, re.IGNORECASE)
    return Answer(body, name if is_result else "", {"read_rows": str(result.rows_read())})


def decompress(body: bytes, encoding: str) -> bytes:
    """Decompress a request's body; clickhouse-connect sends one LZ4 frame per block, not one for all."""
    if not encoding or not body:
        return body
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    if encoding != "lz4":
        raise ValueError(f"no such Content-Encoding: {encoding}")
    blocks: list[bytes] = []
    while body:
        frame = lz4.frame.LZ4FrameDecompressor()
        blocks.append(frame.decompress(body))
        body = frame.unused_data or b""
    return b"".join(blocks)


def read_form(body: bytes, content_type: str) -> dict[str, str]:
    """Return the fields of a multipart form, which clients use for long parameters."""
    boundary = b"--" + content_type.partition("boundary=")[2].strip('"').encode()
    fields: dict[str, str] = {}
    for part in body.split(boundary)[1:-1]:
        head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = _FIELD_NAME.search(head)
        if name is not None:
            fields[name[1].decode()] = value.removesuffix(b"\r\n").decode()
    return fields


class Handler(BaseHTTPRequestHandler):
    """Handles one client connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    handles: Handles
    password = ""

    def do_GET(self) -> None:
        """Answer."""
        self._serve()

    def do_POST(self) -> None:
        """Answer."""
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Stay silent."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self._read_body()
        if url.path == "/ping":
            self._send(200, b"Ok.\n", {})
            return
        query_id = str(uuid.uuid4())
        headers = {"X-ClickHouse-Query-Id": query_id, "X-ClickHouse-Timezone": "UTC"}
        try:
            self._check_password()
            with self.handles.take() as handle:
                answer = execute(
                    handle,
                    self._read_statement(dict(parse_qsl(url.query, keep_blank_values=True)), body),
                    is_cluster=self.handles.is_cluster,
                )
        except EngineError as exc:
            headers["X-ClickHouse-Exception-Code"] = str(exc.code)
            self._send(_STATUS_OF_CODE.get(exc.code, 500), f"{exc}\n".encode(), headers)
            return
        headers["X-ClickHouse-Summary"] = json.dumps(dict(answer.summary))
        if answer.format:
            headers["X-ClickHouse-Format"] = answer.format
        self._send(200, answer.body, headers)

    def _check_password(self) -> None:
        sent = self.headers.get("X-ClickHouse-Key", "")
        basic = self.headers.get("Authorization", "").removeprefix("Basic ")
        if sent != self.password and basic != self._basic():
            raise EngineError(f"Code: {WRONG_PASSWORD}. DB::Exception: wrong password (AUTHENTICATION_FAILED)")

    def _basic(self) -> str:
        return base64.b64encode(f"default:{self.password}".encode()).decode()

    def _read_statement(self, values: dict[str, str], body: bytes) -> Statement:
        content_type = self.headers.get("Content-Type", "")
        if content_type.startswith("multipart/form-data"):
            values |= read_form(body, content_type)
            body = b""
        sql, inserted = values.get("query", "").encode(), b""
        if not sql:
            sql = body
            found = _FORMAT.search(sql) if _INSERT.match(sql) else None
            if found is not None:
                sql, inserted = body[: found.end()], body[found.end() :]
        elif _INSERT.match(sql):
            inserted = body
        else:
            sql = b"\n".join(filter(None, (sql, body)))
        return Statement(
            sql=sql,
            inserted=inserted,
            database=self.headers.get("X-ClickHouse-Database") or values.get("database", ""),
            settings={k: v for k, v in values.items() if k not in _TRANSPORT and not k.startswith("param_")},
            parameters={k[6:]: v for k, v in values.items() if k.startswith("param_")},
            format=values.get("default_format") or "TabSeparated",
        )

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            chunks: list[bytes] = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(chunks)
        else:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(min(size, BODY_BYTES_MAX))
        return decompress(body, self.headers.get("Content-Encoding", "").lower())

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """An HTTP server with one thread per connection."""

    daemon_threads = True
    request_queue_size = 128


def main(directory: str, password: str, kind: str = "") -> None:
    """Serve on a free loopback port until standard input closes."""
    Handler.handles = Handles(Path(directory), is_cluster=kind == "cluster")
    Handler.password = password
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:4])
