"""An ordinary agent on the OpenAI SDK (1.59, 2.x, 3.x): calls everything and prints everything it gets.

usage: python openai_agent.py [SECTION ...]      all sections when none is named
"""

import asyncio
import collections
import json
import os
import sys

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ValidationError

MODEL = os.environ.get("AGENT_MODEL", "gpt-x")
client = OpenAI(max_retries=3)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text):
    return [{"role": "system", "content": "You are terse."}, {"role": "user", "content": text}]


def show(*parts):
    print(*parts, flush=True)


def show_error(name, exc):
    status = getattr(exc, "status_code", None)
    body = getattr(exc, "body", None)
    request_id = getattr(exc, "request_id", None)
    show(name, type(exc).__module__, type(exc).__name__, status, body, request_id, str(exc))
    show(name, "mro", [c.__name__ for c in type(exc).__mro__])


def show_completion(name, answer):
    request_id = getattr(answer, "_request_id", None)
    show(name, type(answer).__name__, request_id, answer.id, answer.model, answer.system_fingerprint)
    for choice in answer.choices:
        show(name, choice.index, choice.finish_reason, choice.message.role, choice.message.content)
    show(name, answer.usage)


def create():
    answer = client.chat.completions.create(model=MODEL, messages=ask("Hello, it costs $190,000."), seed=7)
    show_completion("create", answer)
    show("create", answer.model_dump_json())


def logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=ask("Say it with odds."), logprobs=True, top_logprobs=2, temperature=0.7
    )
    show_completion("logprobs", answer)
    for token in answer.choices[0].logprobs.content:
        show("logprobs", token.model_dump_json())


def several():
    answer = client.chat.completions.create(model=MODEL, messages=ask("Say it three ways."), n=3)
    show_completion("several", answer)


def tools():
    messages = ask(
        'use tool get_weather with {"city": "Paris"} and use tool get_weather with {"city": "Zürich"} '
        'then use tool get_weather with {"city": "Oslo"}'
    )
    for turn in range(5):
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        message = answer.choices[0].message
        show("tools", turn, answer.choices[0].finish_reason, message.content)
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            show("tools", call.id, call.function.name, call.function.arguments)
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{city}: {len(city)} degrees"})


def stream():
    chunks = client.chat.completions.create(model=MODEL, messages=ask("Stream, please."), stream=True)
    show("stream", type(chunks).__name__, chunks.response.headers.get("x-request-id"))
    count = 0
    for chunk in chunks:
        count += 1
        show("stream", type(chunk).__name__, chunk.model_dump_json())
    show("stream", count, "chunks")


def stream_tools():
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=ask('use tool get_weather with {"city": "Rome"}'),
        tools=[WEATHER],
        stream=True,
    )
    for chunk in chunks:
        show("stream_tools", chunk.model_dump_json(exclude_unset=True))


def stream_break():
    chunks = client.chat.completions.create(model=MODEL, messages=ask("Stream a little."), stream=True)
    for number, chunk in enumerate(chunks):
        show("stream_break", number, chunk.choices[0].delta.content)
        if number == 4:
            break
    chunks.close()
    show("stream_break", "closed")


def stream_usage():
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=ask("Stream and count."),
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        text = chunk.choices[0].delta.content if chunk.choices else None
        show("stream_usage", text, chunk.usage)


def raw():
    response = client.chat.completions.with_raw_response.create(model=MODEL, messages=ask("Raw, please."))
    show("raw", type(response).__name__, response.status_code, response.headers["x-request-id"])
    show("raw", sorted(response.headers.keys()))
    show("raw", response.http_response.text)
    show_completion("raw", response.parse())


def streaming_response():
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ask("Line by line."), stream=True
    ) as response:
        show("streaming_response", type(response).__name__, response.headers["content-type"])
        for line in response.iter_lines():
            show("streaming_response", line)


class Order(BaseModel):
    symbol: str
    quantity: int
    notes: list[str]


def _beta():
    """`.parse` and `.stream` live under `beta` in openai 1.x."""
    return client.chat.completions if hasattr(client.chat.completions, "parse") else client.beta.chat.completions


def parse():
    answer = _beta().parse(model=MODEL, messages=ask("Give me an order."), response_format=Order)
    order = answer.choices[0].message.parsed
    show("parse", type(answer).__name__, type(order).__name__, order, isinstance(order, Order))


def parse_error():
    try:
        _beta().parse(model=MODEL, messages=ask("answer outside the schema"), response_format=Order)
    except ValidationError as exc:
        show("parse_error", type(exc).__module__, type(exc).__name__, str(exc).splitlines()[0])


def helper_stream():
    with _beta().stream(model=MODEL, messages=ask("With the helper.")) as events:
        for event in events:
            show("helper_stream", event.type, getattr(event, "delta", None))
        show_completion("helper_stream", events.get_final_completion())


def embeddings():
    answer = client.embeddings.create(model="embed-x", input=["one", "two"])
    for row in answer.data:
        show("embeddings", row.index, type(row.embedding).__name__, list(row.embedding))
    plain = client.embeddings.create(model="embed-x", input="three", encoding_format="float", dimensions=4)
    show("embeddings", plain.model, plain.data[0].embedding, plain.usage)


RESPONSES_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": WEATHER["function"]["parameters"],
    "strict": False,
}


def responses():
    if not hasattr(client, "responses"):
        show("responses", "not in this version")
        return
    answer = client.responses.create(model=MODEL, input="Hello, responses.")
    show("responses", type(answer).__name__, answer._request_id, answer.id, answer.output_text)
    show("responses", answer.model_dump_json())
    items = [{"role": "user", "content": 'use tool get_weather with {"city": "Bern"}'}]
    answer = client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
    for item in answer.output:
        show("responses", item.type, item.call_id, item.name, item.arguments)
        items.append(item.model_dump(exclude_none=True))
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "4 degrees"})
    answer = client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
    show("responses", answer.output_text)


def responses_stream():
    if not hasattr(client, "responses"):
        show("responses_stream", "not in this version")
        return
    for event in client.responses.create(model=MODEL, input="Stream, responses.", stream=True):
        show("responses_stream", event.type, event.model_dump_json())


async def _use_async():
    async with AsyncOpenAI() as aclient:
        answer = await aclient.chat.completions.create(model=MODEL, messages=ask("Hello, async."))
        show_completion("async", answer)
        async for chunk in await aclient.chat.completions.create(
            model=MODEL, messages=ask("Stream, async."), stream=True
        ):
            show("async", chunk.model_dump_json())


def asynchronous():
    asyncio.run(_use_async())


async def _use_forty():
    async with AsyncOpenAI(max_retries=5) as aclient:

        async def one(lane):
            answer = await aclient.chat.completions.create(
                model=MODEL, messages=ask("What is 6 x 7? Think freely."), temperature=0.7
            )
            return lane, answer.choices[0].message.content

        answers = await asyncio.gather(*(one(lane) for lane in range(40)))
        for lane, text in answers:
            show("forty", lane, text)
        votes = collections.Counter(len(text.split(":")[1]) % 5 for _, text in answers)
        show("majority", votes.most_common(1)[0])


def forty():
    asyncio.run(_use_forty())


def rate_limited():
    answer = client.chat.completions.create(model=MODEL, messages=ask("Please fail 429 twice."))
    show_completion("rate_limited", answer)
    try:
        client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=ask("Now fail 429 always."))
    except openai.RateLimitError as exc:
        show_error("rate_limited", exc)
        show("rate_limited", exc.response.headers["retry-after"])


def server_error():
    try:
        client.with_options(max_retries=1).chat.completions.create(model=MODEL, messages=ask("fail 500 always"))
    except openai.InternalServerError as exc:
        show_error("server_error", exc)


def bad_request():
    try:
        client.chat.completions.create(model=MODEL, messages=ask("fail 400 always"))
    except openai.BadRequestError as exc:
        show_error("bad_request", exc)


def dropped():
    chunks = client.chat.completions.create(model=MODEL, messages=ask("drop connection mid-stream"), stream=True)
    try:
        for chunk in chunks:
            show("dropped", chunk.choices[0].delta.content)
    except Exception as exc:  # noqa: BLE001 - httpx's or httpx2's, by SDK version; its class is printed
        show_error("dropped", exc)
    try:
        client.with_options(max_retries=0).chat.completions.create(
            model=MODEL, messages=ask("drop connection mid-answer")
        )
    except openai.APIConnectionError as exc:
        show_error("dropped", exc)
        show("dropped", "cause", type(exc.__cause__).__name__, exc.__cause__)


def slow():
    try:
        client.with_options(max_retries=0, timeout=0.05).chat.completions.create(model=MODEL, messages=ask("be slow"))
    except openai.APITimeoutError as exc:
        show("slow", type(exc).__name__, exc, type(exc.__cause__).__name__)


SECTIONS = {
    "create": create,
    "logprobs": logprobs,
    "several": several,
    "tools": tools,
    "stream": stream,
    "stream_tools": stream_tools,
    "stream_break": stream_break,
    "stream_usage": stream_usage,
    "raw": raw,
    "streaming_response": streaming_response,
    "parse": parse,
    "parse_error": parse_error,
    "helper_stream": helper_stream,
    "embeddings": embeddings,
    "responses": responses,
    "responses_stream": responses_stream,
    "async": asynchronous,
    "forty": forty,
    "rate_limited": rate_limited,
    "server_error": server_error,
    "bad_request": bad_request,
    "dropped": dropped,
    "slow": slow,
}

if __name__ == "__main__":
    show("openai", openai.__version__, sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
