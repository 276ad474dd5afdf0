"""A local realtime model on a websocket: OpenAI's events, every answer unique."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import websockets.sync.server

from support.wire_text import Json, Line, make_id, make_text, read_turn, resolve_model, split_text

SOUND_BYTES = 960


class RealtimeServer:
    """Serves on a port of 127.0.0.1 while entered."""

    def __init__(self) -> None:
        self._server = websockets.sync.server.serve(_serve, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The value of OPENAI_BASE_URL; the SDK turns it into a websocket URL."""
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}/v1"

    def __enter__(self) -> RealtimeServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port; harmless when done already."""
        self._server.shutdown()
        self._thread.join()


class _Session:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        query = connection.request.path.partition("model=")[2]
        self._session: Json = {"type": "realtime", "id": make_id("sess_"), "model": resolve_model(query), "tools": []}
        self._lines: list[Line] = []
        self._sound = 0

    def say(self, kind: str, **event: Any) -> None:
        self._connection.send(json.dumps({"type": kind, "event_id": make_id("event_"), **event}, ensure_ascii=False))

    def run(self) -> None:
        self.say("session.created", session=self._session)
        for text in self._connection:
            event = json.loads(text)
            answer = getattr(self, event["type"].replace(".", "_"), None)
            if answer is None:
                self.say("error", error={"type": "invalid_request_error", "message": f"unknown {event['type']}"})
            else:
                answer(event)

    def session_update(self, event: Json) -> None:
        self._session = {**self._session, **event["session"]}
        self.say("session.updated", session=self._session)

    def conversation_item_create(self, event: Json) -> None:
        item = {"id": make_id("item_"), **event["item"]}
        if item["type"] == "function_call_output":
            self._lines.append(Line("tool", item["output"]))
        else:
            self._lines.append(Line(item["role"], item["content"][0]["text"]))
        self.say("conversation.item.added", item=item, previous_item_id=None)

    def input_audio_buffer_append(self, event: Json) -> None:
        self._sound += len(base64.b64decode(event["audio"]))

    def input_audio_buffer_commit(self, event: Json) -> None:
        self._lines.append(Line("user", f"{self._sound} bytes of sound"))
        self.say("input_audio_buffer.committed", item_id=make_id("item_"), previous_item_id=None)

    def response_create(self, event: Json) -> None:
        turn = read_turn(self._lines, [tool["name"] for tool in self._session["tools"]], "call_")
        response: Json = {"id": make_id("resp_"), "object": "realtime.response", "status": "in_progress", "output": []}
        self.say("response.created", response=response)
        at = {"response_id": response["id"], "item_id": make_id("item_"), "output_index": 0}
        if turn.tool_orders:
            self._lines.append(Line("assistant", "", is_tool_request=True))
            output = [self._call(order, {**at, "output_index": n}) for n, order in enumerate(turn.tool_orders)]
        else:
            output = [self._speak(make_text(turn), at)]
        usage = {"input_tokens": 11, "output_tokens": 12, "total_tokens": 23}
        details = {"input_token_details": {"cached_tokens": 3, "text_tokens": 8, "audio_tokens": 3}}
        done = {**response, "status": "completed", "output": output, "usage": {**usage, **details}}
        self.say("response.done", response=done)

    def _call(self, order: Any, at: Json) -> Json:
        for piece in split_text(order.arguments, 3):
            self.say("response.function_call_arguments.delta", **at, call_id=order.call_id, delta=piece)
        item = {"id": at["item_id"], "type": "function_call", "call_id": order.call_id, "status": "completed"}
        return {**item, "name": order.name, "arguments": order.arguments}

    def _speak(self, text: str, at: Json) -> Json:
        self._lines.append(Line("assistant", text))
        where = {**at, "content_index": 0}
        is_sound = "audio" in self._session.get("output_modalities", [])
        for piece in split_text(text):
            if is_sound:
                sound = base64.b64encode(piece.encode().ljust(SOUND_BYTES, b"\0")).decode()
                self.say("response.output_audio.delta", **where, delta=sound)
                self.say("response.output_audio_transcript.delta", **where, delta=piece)
            else:
                self.say("response.output_text.delta", **where, delta=piece)
        part = {"type": "output_audio", "transcript": text} if is_sound else {"type": "output_text", "text": text}
        return {"id": at["item_id"], "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _serve(connection: Any) -> None:
    _Session(connection).run()
