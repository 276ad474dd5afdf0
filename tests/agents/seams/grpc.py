"""A gRPC channel, and a server in the same process."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from secrets import token_hex

import grpc

PORT = os.environ["PORT"]
BODIES = []


def answer(request, context):
    BODIES.append("answer")
    return request + token_hex(8).encode()


def refuse(request, context):
    BODIES.append("refuse")
    context.abort(grpc.StatusCode.NOT_FOUND, "no such row")


def count(request, context):
    for n in range(5):
        yield b"%d" % n


@contextmanager
def channel():
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {
        "Answer": grpc.unary_unary_rpc_method_handler(answer),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("notes.Notes", handlers),))
    server.add_insecure_port(f"127.0.0.1:{PORT}")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{PORT}") as opened:
            yield opened
    finally:
        server.stop(None).wait()


def use():
    with channel() as opened:
        return opened.unary_unary("/notes.Notes/Answer")(b"row 1 ")


def fail():
    with channel() as opened:
        try:
            opened.unary_unary("/notes.Notes/Refuse")(b"row 2")
        except grpc.RpcError as exc:
            return exc.code().name, exc.details()


def abandon():
    with channel() as opened:
        stream = opened.unary_stream("/notes.Notes/Count")(b"")
        next(stream)
        stream.cancel()
