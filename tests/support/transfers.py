"""Large bodies through each HTTP library: a server, and a program that transfers one and reports the cost.

Run: python transfers.py serve BYTES, or python transfers.py LIBRARY WAY URL BYTES ROUNDS [DIRECTORY]; with a
directory the program records itself there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.server
import json
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

WAYS: Final = ("download_whole", "download_stream", "upload_whole", "upload_stream")
BLOCK: Final = b"x" * (1 << 16)
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


class Handler(http.server.BaseHTTPRequestHandler):
    """GET returns a body of letters; other methods return the size and hash of the received body."""

    protocol_version = "HTTP/1.1"
    size = 0
    content: bytes | None = None
    encoding = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        return

    def do_GET(self) -> None:
        if self.content is not None:
            self._send(self.content)
            return
        size = 1024 if self.path == "/small" else self.size
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(size))
        self.end_headers()
        for piece in pieces(size):
            self.wfile.write(piece)

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-length", str(len(content)))
        if self.encoding:
            self.send_header("content-encoding", self.encoding)
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        hashed, size = hashlib.sha256(), 0
        for piece in self._read():
            hashed.update(piece)
            size += len(piece)
        answer = json.dumps({"size": size, "sha256": hashed.hexdigest()}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST  # noqa: N815 -- the base class names them so

    def _read(self) -> Iterator[bytes]:
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            while left := int(self.rfile.readline(), 16):
                yield self.rfile.read(left)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("content-length") or 0)
        while left and (piece := self.rfile.read(min(left, len(BLOCK)))):
            left -= len(piece)
            yield piece


def pieces(size: int) -> Iterator[bytes]:
    """Yield `size` letters, block by block."""
    while size > 0:
        yield BLOCK[:size]
        size -= len(BLOCK)


async def _apieces(size: int) -> AsyncIterator[bytes]:
    for piece in pieces(size):
        yield piece


def _seen(parts: Iterator[bytes]) -> dict[str, Any]:
    size = 0
    for part in parts:
        size += len(part)
    return {"size": size}


def _httpx(hx: Any, way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    with hx.Client() as client:
        if way == "download_whole":
            return _seen(iter([client.get(url).content]))
        if way == "download_stream":
            with client.stream("GET", url) as response:
                return _seen(response.iter_bytes())
        found: dict[str, Any] = client.post(url, content=body if way == "upload_whole" else pieces(size)).json()
        return found


def _use_httpx(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import httpx

    return _httpx(httpx, way, url, size, body)


def _use_httpx2(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import httpx2

    return _httpx(httpx2, way, url, size, body)


def _use_aiohttp(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import aiohttp

    async def main() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            if way == "download_whole":
                async with session.get(url) as response:
                    return _seen(iter([await response.read()]))
            if way == "download_stream":
                async with session.get(url) as response:
                    return {"size": sum([len(part) async for part in response.content.iter_chunked(1 << 16)])}
            sent: Any = body if way == "upload_whole" else _apieces(size)
            async with session.post(url, data=sent) as response:
                found: dict[str, Any] = await response.json()
                return found

    return asyncio.run(main())


def _use_requests(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import requests

    if way == "download_whole":
        return _seen(iter([requests.get(url, timeout=60).content]))
    if way == "download_stream":
        with requests.get(url, stream=True, timeout=60) as response:
            return _seen(response.iter_content(1 << 16))
    sent: Any = body if way == "upload_whole" else pieces(size)
    found: dict[str, Any] = requests.post(url, data=sent, timeout=60).json()
    return found


def _use_urllib3(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import urllib3

    pool = urllib3.PoolManager()
    if way == "download_whole":
        return _seen(iter([pool.request("GET", url).data]))
    if way == "download_stream":
        return _seen(pool.request("GET", url, preload_content=False).stream(1 << 16))
    sent: Any = body if way == "upload_whole" else pieces(size)
    found: dict[str, Any] = json.loads(pool.request("POST", url, body=sent).data)
    return found


def _use_urllib(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    import urllib.request

    if way == "download_whole":
        with urllib.request.urlopen(url) as response:
            return _seen(iter([response.read()]))
    if way == "download_stream":
        with urllib.request.urlopen(url) as response:
            return _seen(iter(lambda: response.read(1 << 16), b""))
    sent: Any = body if way == "upload_whole" else pieces(size)
    request = urllib.request.Request(url, data=sent, method="POST")
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)
        return found


def _use_botocore(way: str, url: str, size: int, body: bytes) -> dict[str, Any]:
    from botocore.awsrequest import AWSRequest
    from botocore.httpsession import URLLib3Session

    session: Any = URLLib3Session()
    if way.startswith("download"):
        request = AWSRequest("GET", url, stream_output=way == "download_stream").prepare()
        response = session.send(request)
        parts = response.raw.stream(1 << 16) if way == "download_stream" else iter([response.content])
        return _seen(parts)
    sent: Any = body if way == "upload_whole" else Pipe(size)
    headers = {"Content-Length": str(size)}
    found: dict[str, Any] = json.loads(session.send(AWSRequest("POST", url, headers, sent).prepare()).content)
    return found


class Pipe:
    """A body that can be read once, as botocore takes it."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, amount: int | None = -1) -> bytes:
        """Return the next bytes."""
        amount = self._left if amount is None or amount < 0 else min(amount, self._left)
        self._left -= amount
        return BLOCK[:amount] if amount <= len(BLOCK) else b"x" * amount


LIBRARIES: Final[dict[str, Callable[[str, str, int, bytes], dict[str, Any]]]] = {
    "httpx": _use_httpx,
    "httpx2": _use_httpx2,
    "aiohttp": _use_aiohttp,
    "requests": _use_requests,
    "urllib3": _use_urllib3,
    "urllib": _use_urllib,
    "botocore": _use_botocore,
}


def peak_bytes() -> int:
    """Return this process's peak memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class Transfers:
    """Runs the server in a thread while entered; yields its address."""

    def __init__(self, size: int, content: bytes | None = None, encoding: str = "") -> None:
        members = {"size": size, "content": content, "encoding": encoding}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), members))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _transfer(library: str, way: str, url: str, size: int, rounds: int) -> dict[str, Any]:
    use = LIBRARIES[library]
    use(way, f"{url}/small", 1024, b"x" * 1024)  # imports the library's modules
    body = b"x" * size if way == "upload_whole" else b""
    before, times, seen = peak_bytes(), [], {}
    for _ in range(rounds):
        start = time.process_time_ns()
        seen = use(way, f"{url}/large", size, body)
        times.append(time.process_time_ns() - start)
    return {"cpu_s": min(times) / 1e9, "grown_bytes": peak_bytes() - before, "seen": seen}


def main(arguments: list[str]) -> None:
    """Serve, or transfer and print the cost."""
    if arguments[0] == "serve":
        Handler.size = int(arguments[1])
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
    library, way, url, size, rounds, *directory = arguments
    with contextlib.ExitStack() as stack:
        if directory:
            import spanreplay

            stack.enter_context(spanreplay.record(directory=Path(directory[0])))
        found = _transfer(library, way, url, int(size), int(rounds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
