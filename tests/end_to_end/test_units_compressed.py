"""Compressed requests: no secret in a body is kept, and applications get the same bytes again."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any, Final

import httpx

from spanreplay.model.call import Recording
from spanreplay.runtime.wire.packing import find_packing, pack
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, prepare, serve, serve_with

SECRET: Final = "kept-in-the-open-4711"
QUESTION: Final = json.dumps({"question": "sell " * 500, "api_key": SECRET}).encode()
FASTAPI: Final = """
import gzip, hashlib, json, zlib
from fastapi import FastAPI, Request

app = FastAPI()

@app.post("/ask")
async def ask(request: Request):
    packed = await request.body()
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(request.headers["content-encoding"], bytes)
    return {"bytes": hashlib.sha256(packed).hexdigest(), "length": len(unpack(packed))}
"""
WSGI: Final = """
import gzip, json
from wsgiref.simple_server import make_server
import sys

def app(environ, start):
    question = json.loads(gzip.decompress(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
    start("200 OK", [("Content-Type", "text/plain")])
    return [question["question"].encode()]

if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), app).serve_forever()
"""


def pack_otherwise(plain: bytes) -> bytes:
    """Compress with levels other than zlib's, giving longer output than a replay does."""
    packing = zlib.compressobj(2, zlib.DEFLATED, 31)
    return packing.compress(plain) + packing.flush()


def body_of(unit: Recording) -> dict[str, Any]:
    """The recorded body of a request."""
    found: dict[str, Any] = next(
        json.loads(call.response)["value"] for call in unit.calls if call.boundary == "http:body"
    )
    return found


def post(server: Server, content: bytes, encoding: str) -> httpx.Response:
    """Send a compressed body."""
    headers = {"content-encoding": encoding}
    return httpx.post(f"{server.url}/ask", content=content, headers=headers, timeout=TIMEOUT_S)


def test_r1_p4_a_compressed_request_holds_no_secret_and_replays(provider: Provider, tmp_path: Path) -> None:
    """If nothing was hidden, the application computes the same from the bytes as they were sent."""
    place = prepare(tmp_path, provider, FASTAPI)
    clean = QUESTION.replace(SECRET.encode(), b"")
    with serve(place) as server:
        for encoding, compress in (("gzip", gzip.compress), ("deflate", zlib.compress)):
            for content in (clean, QUESTION):
                assert post(server, compress(content), encoding).json()["length"] == len(content)
        server.stop()
    bodies = {unit.run_id: json.loads(body_of(unit)["text"]) for unit in server.units()}
    assert [body["question"] for body in bodies.values()] == ["sell " * 500] * 4
    assert SECRET not in str(bodies)
    (gzipped, deflated) = (run_id for run_id, body in bodies.items() if not body["api_key"])
    for run_id in (gzipped, deflated):
        replayed = place.replay("-m", "uvicorn", "app:app", source=run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_r1_an_encoding_that_is_not_unpacked_is_not_kept(provider: Provider, tmp_path: Path) -> None:
    """Its content can't be checked for secrets: the run is incomplete, and says why."""
    place = prepare(tmp_path, provider, FASTAPI)
    with serve(place) as server:
        content = b"\x1b\xff" + QUESTION
        assert post(server, content, "br").json()["length"] == len(content)
        server.stop()
    (unit,) = server.units()
    body = body_of(unit)
    assert body["bytes"] == len(content)
    assert "text" not in body
    assert "base64" not in body
    assert any("compressed (br)" in hole for hole in unit.root.manifest["holes"])


def test_p4_a_request_of_another_compressor_has_its_length_again(workplace: Workplace) -> None:
    """A WSGI application reads only the stated length."""
    (workplace.path / "app.py").write_text(WSGI)
    port = free_port()
    with serve_with(workplace, port, "app.py", str(port)) as server:
        answer = post(server, pack_otherwise(QUESTION), "gzip")
        assert answer.text == "sell " * 500
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    replayed = workplace.replay("app.py", str(port), source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p4_a_request_that_hides_much_has_its_length_again(workplace: Workplace) -> None:
    """The recording holds a shorter token for a secret; the application gets the secret and the matching length."""
    (workplace.path / "app.py").write_text(WSGI)
    port = free_port()
    secret = "".join(random.Random(2).choices("0123456789abcdef", k=400))
    with serve_with(workplace, port, "app.py", str(port)) as server:
        plain = json.dumps({"question": "sell", "api_key": secret}).encode()
        assert post(server, gzip.compress(plain), "gzip").text == "sell"
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    assert secret not in unit.calls[1].response
    replayed = workplace.replay("app.py", str(port), source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p4_a_request_that_packs_better_than_zlib_comes_back_whole(workplace: Workplace) -> None:
    """A replay's bytes are longer than the recorded length: the application gets the new length."""
    letters = "".join(
        random.Random(1).choices("0123456789abcdef", k=20_000)
    )  # without repetitions that would be worth a back-reference
    plain = json.dumps({"question": letters}).encode()
    packing = zlib.compressobj(9, zlib.DEFLATED, 31, 9, zlib.Z_HUFFMAN_ONLY)
    packed = packing.compress(plain) + packing.flush()
    recipe = find_packing(packed, plain)
    assert recipe is not None
    assert len(pack(plain, recipe)) > len(packed)
    (workplace.path / "app.py").write_text(WSGI)
    port = free_port()
    with serve_with(workplace, port, "app.py", str(port)) as server:
        assert post(server, packed, "gzip").text == letters
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    replayed = workplace.replay("app.py", str(port), source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
