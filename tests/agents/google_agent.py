"""An ordinary agent on Google's SDK (google-genai): calls everything and prints everything it gets.

usage: python google_agent.py [SECTION ...]      all sections when none is named
Asynchronous calls go through aiohttp, the SDK's choice where it is there, or what AGENT_ASYNC names (httpx, httpx2).
"""

import asyncio
import importlib
import os
import sys

from google import genai
from google.genai import errors as google_errors
from google.genai import types
from pydantic import BaseModel

MODEL = os.environ.get("AGENT_MODEL", "gemini-x")
ASYNC = os.environ.get("AGENT_ASYNC", "")
own = {"httpx_async_client": importlib.import_module(ASYNC).AsyncClient()} if ASYNC else {}
client = genai.Client(http_options=types.HttpOptions(**own))

WEATHER = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="get_weather",
            description="Weather of a city",
            parameters=types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")}, required=["city"]),
        )
    ]
)


def config(**more):
    return types.GenerateContentConfig(system_instruction="You are terse.", **more)


def show(*parts):
    print(*parts, flush=True)


def show_response(name, response):
    show(name, type(response).__name__, response.response_id, response.model_version)
    for candidate in response.candidates:
        show(name, candidate.finish_reason, candidate.content.role)
        for part in candidate.content.parts:
            show(name, type(part).__name__, part.model_dump_json(exclude_none=True))
    show(name, response.usage_metadata)


def generate():
    response = client.models.generate_content(
        model=MODEL, contents="Hello, it costs $190,000.", config=config(temperature=0.7, top_p=0.9, seed=7)
    )
    show_response("generate", response)
    show("generate", response.text)
    show("generate", sorted(response.sdk_http_response.headers))


def stream():
    count = 0
    for chunk in client.models.generate_content_stream(model=MODEL, contents="Stream, please.", config=config()):
        count += 1
        show("stream", type(chunk).__name__, chunk.model_dump_json(exclude_none=True))
    show("stream", count, "chunks")


def stream_break():
    chunks = client.models.generate_content_stream(model=MODEL, contents="Stream a little.", config=config())
    for number, chunk in enumerate(chunks):
        show("stream_break", number, chunk.text)
        if number == 4:
            break


def tools():
    prompt = (
        'use tool get_weather with {"city": "Paris"} and use tool get_weather with {"city": "Zürich"} '
        'then use tool get_weather with {"city": "Oslo"}'
    )
    contents = [types.Content(role="user", parts=[types.Part(text=prompt)])]
    for turn in range(5):
        response = client.models.generate_content(model=MODEL, contents=contents, config=config(tools=[WEATHER]))
        show_response(f"tools {turn}", response)
        if not response.function_calls:
            break
        contents.append(response.candidates[0].content)
        results = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"degrees": len(call.args["city"])}
                )
            )
            for call in response.function_calls
        ]
        contents.append(types.Content(role="user", parts=results))


def get_time(city: str) -> str:
    """Time in a city.

    Args:
        city: the city
    """
    return f"noon in {city}"


def automatic():
    """The SDK itself calls the Python function and goes on."""
    response = client.models.generate_content(
        model=MODEL, contents='use tool get_time with {"city": "Lima"}', config=config(tools=[get_time])
    )
    show_response("automatic", response)
    for content in response.automatic_function_calling_history:
        show("automatic", content.model_dump_json(exclude_none=True))


class Order(BaseModel):
    symbol: str
    quantity: int


def parse():
    response = client.models.generate_content(
        model=MODEL,
        contents="Give me an order.",
        config=config(response_mime_type="application/json", response_schema=Order),
    )
    show("parse", type(response.parsed).__name__, response.parsed)


def chat():
    talk = client.chats.create(model=MODEL, config=config())
    for text in ("Hello.", "And again."):
        show("chat", talk.send_message(text).text)
    for chunk in talk.send_message_stream("At length."):
        show("chat", chunk.text)
    show("chat", len(talk.get_history()))


def count():
    show("count", client.models.count_tokens(model=MODEL, contents="How long am I?").total_tokens)


def errors():
    for prompt, kind in (
        ("fail 429 always", google_errors.ClientError),
        ("fail 503 always", google_errors.ServerError),
    ):
        try:
            client.models.generate_content(model=MODEL, contents=prompt)
        except kind as exc:
            show("errors", type(exc).__module__, type(exc).__name__, exc.code, exc.status, exc.message, exc)
    try:
        for chunk in client.models.generate_content_stream(model=MODEL, contents="fail 400 always"):
            show("errors", chunk)
    except google_errors.ClientError as exc:
        show("errors", type(exc).__name__, exc.code, exc)


async def _use_async():
    response = await client.aio.models.generate_content(model=MODEL, contents="Hello, async.", config=config())
    show_response("async", response)
    async for chunk in await client.aio.models.generate_content_stream(
        model=MODEL, contents="Stream, async.", config=config()
    ):
        show("async", chunk.model_dump_json(exclude_none=True))

    async def one(lane):
        answer = await client.aio.models.generate_content(model=MODEL, contents="Think freely.", config=config())
        return lane, answer.text

    for lane, text in await asyncio.gather(*(one(lane) for lane in range(10))):
        show("async", lane, text)
    await client.aio.aclose()


def asynchronous():
    asyncio.run(_use_async())


SECTIONS = {
    "generate": generate,
    "stream": stream,
    "stream_break": stream_break,
    "tools": tools,
    "automatic": automatic,
    "parse": parse,
    "chat": chat,
    "count": count,
    "errors": errors,
    "async": asynchronous,
}

if __name__ == "__main__":
    show("google", genai.__version__, sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
