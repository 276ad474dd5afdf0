"""An ordinary agent on the Anthropic SDK (0.49, 1.x, 2.x): calls everything and prints everything it gets.

usage: python anthropic_agent.py [SECTION ...]      all sections when none is named
"""

import asyncio
import os
import sys

import anthropic
from anthropic import Anthropic, AsyncAnthropic

MODEL = os.environ.get("AGENT_MODEL", "claude-x")
client = Anthropic(max_retries=3)

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(text):
    return {
        "model": MODEL,
        "max_tokens": 200,
        "system": "You are terse.",
        "messages": [{"role": "user", "content": text}],
    }


def show(*parts):
    print(*parts, flush=True)


def show_message(name, message):
    request_id = getattr(message, "_request_id", None)
    show(name, type(message).__name__, request_id, message.id, message.model, message.stop_reason)
    for block in message.content:
        show(name, type(block).__name__, block.model_dump_json())
    show(name, message.usage)


def show_error(name, exc):
    request_id = getattr(exc, "request_id", None)
    show(
        name,
        type(exc).__module__,
        type(exc).__name__,
        getattr(exc, "status_code", None),
        request_id,
        str(exc),
    )
    show(name, "mro", [c.__name__ for c in type(exc).__mro__])


def create():
    show_message("create", client.messages.create(**ask("Hello, it costs $190,000."), extra_body={"temperature": 0.7}))


def tools():
    request = ask('use tool get_weather with {"city": "Paris"} and use tool get_weather with {"city": "Zürich"}')
    for _ in range(4):
        message = client.messages.create(**request, tools=[WEATHER])
        show_message("tools", message)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"{call.input['city']}: 9 degrees"}
            for call in calls
        ]
        request["messages"].append({"role": "assistant", "content": message.content})
        request["messages"].append({"role": "user", "content": results})


def stream():
    for event in client.messages.create(**ask("Stream, please."), stream=True):
        show("stream", type(event).__name__, event.model_dump_json())


def stream_break():
    with client.messages.create(**ask("Stream a little."), stream=True) as events:
        for number, event in enumerate(events):
            show("stream_break", event.type)
            if number == 5:
                break
    show("stream_break", "closed")


def helper_stream():
    with client.messages.stream(**ask("With the helper.")) as events:
        for event in events:
            show("helper_stream", event.type, getattr(event, "text", None))
        show_message("helper_stream", events.get_final_message())
    with client.messages.stream(**ask('use tool get_weather with {"city": "Rome"}'), tools=[WEATHER]) as events:
        for event in events:
            show("helper_stream", event.type, getattr(event, "partial_json", None))
        show_message("helper_stream", events.get_final_message())


def raw():
    response = client.messages.with_raw_response.create(**ask("Raw, please."))
    show("raw", response.status_code, response.headers["request-id"], response.http_response.text)
    show_message("raw", response.parse())


def streaming_response():
    with client.messages.with_streaming_response.create(**ask("Line by line."), stream=True) as response:
        for line in response.iter_lines():
            show("streaming_response", line)


def count_tokens():
    request = ask("How long am I?")
    del request["max_tokens"]
    show("count_tokens", client.messages.count_tokens(**request).model_dump_json())


async def _use_async():
    async with AsyncAnthropic() as aclient:
        show_message("async", await aclient.messages.create(**ask("Hello, async.")))
        async for event in await aclient.messages.create(**ask("Stream, async."), stream=True):
            show("async", event.model_dump_json())
        async with aclient.messages.stream(**ask("With the async helper.")) as events:
            async for text in events.text_stream:
                show("async", text)

        async def one(lane):
            return lane, (await aclient.messages.create(**ask("Think freely."))).content[0].text

        for lane, text in await asyncio.gather(*(one(lane) for lane in range(10))):
            show("async", lane, text)


def asynchronous():
    asyncio.run(_use_async())


def errors():
    show_message("errors", client.messages.create(**ask("Please fail 429 twice.")))
    quick = client.with_options(max_retries=0)
    try:
        quick.messages.create(**ask("Now fail 429 always."))
    except anthropic.RateLimitError as exc:
        show_error("errors", exc)
    try:
        quick.messages.create(**ask("fail 500 always"))
    except anthropic.InternalServerError as exc:
        show_error("errors", exc)
    try:
        quick.messages.create(**ask("fail 400 always"))
    except anthropic.BadRequestError as exc:
        show_error("errors", exc)


def dropped():
    try:
        for event in client.messages.create(**ask("drop connection mid-stream"), stream=True):
            show("dropped", event.type)
    except Exception as exc:  # noqa: BLE001 - httpx's or httpx2's, by SDK version; its class is printed
        show_error("dropped", exc)


SECTIONS = {
    "create": create,
    "tools": tools,
    "stream": stream,
    "stream_break": stream_break,
    "helper_stream": helper_stream,
    "raw": raw,
    "streaming_response": streaming_response,
    "count_tokens": count_tokens,
    "async": asynchronous,
    "errors": errors,
    "dropped": dropped,
}

if __name__ == "__main__":
    show("anthropic", anthropic.__version__, sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
