"""A local gRPC server without generated code: messages are JSON objects."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


def encode(message: Any) -> bytes:
    """A message's bytes."""
    return json.dumps(message).encode()


def _fresh(message: Any) -> Any:
    return {"id": uuid.uuid4().hex, "got": message}


def _ask(request: Any, context: Any) -> Any:
    context.set_trailing_metadata((("x-cost", "7"), ("x-raw-bin", b"\x00\x01")))
    if request.get("fail"):
        context.abort(grpc.StatusCode.NOT_FOUND, f"no such thing {uuid.uuid4().hex}")
    return _fresh(request)


def _many(request: Any, context: Any) -> Iterator[Any]:
    for n in range(request["n"]):
        yield _fresh(n)
    if request.get("fail"):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "that was all")


def _sum(requests: Iterator[Any], context: Any) -> Any:
    return _fresh([request["n"] for request in requests])


def _chat(requests: Iterator[Any], context: Any) -> Iterator[Any]:
    for request in requests:
        yield _fresh(request)


def _take_time(request: bytes, context: Any) -> bytes:
    threading.Event().wait(float(request))
    return request


class GrpcServer:
    """Serves on a port of 127.0.0.1 while entered."""

    def __init__(self) -> None:
        wire: Any = {"request_deserializer": json.loads, "response_serializer": encode}
        handlers = {
            "Ask": grpc.unary_unary_rpc_method_handler(_ask, **wire),
            "Many": grpc.unary_stream_rpc_method_handler(_many, **wire),
            "Sum": grpc.stream_unary_rpc_method_handler(_sum, **wire),
            "Chat": grpc.stream_stream_rpc_method_handler(_chat, **wire),
        }
        handlers["Slow"] = grpc.unary_unary_rpc_method_handler(_take_time)
        handlers["Echo"] = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Oracle", handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def target(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> GrpcServer:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close every connection; harmless when done already."""
        self._server.stop(None).wait()
