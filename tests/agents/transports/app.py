"""A model provider as an ASGI application: chat completions, whole and streamed, and a page."""

import itertools
import json
import os

COUNTER = itertools.count(1)


def chunk(content, reason=None):
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-x-2026-10-01",
        "choices": [choice],
    }


def whole(content):
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-x-2026-10-01", "choices": [choice]}


async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    said = f"answer {next(COUNTER)} of process {os.getpid()} at {scope['path']}"
    is_stream = bool(body) and json.loads(body).get("stream", False)
    kind = b"text/event-stream" if is_stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if is_stream:
        for word in said.split():
            line = f"data: {json.dumps(chunk(word))}\n\n".encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        last = f"data: {json.dumps(chunk('', 'stop'))}\n\ndata: [DONE]\n\n".encode()
        await send({"type": "http.response.body", "body": last})
    else:
        await send({"type": "http.response.body", "body": json.dumps(whole(said)).encode()})
