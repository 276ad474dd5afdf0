"""Talks to Mistral: chat, streams, tools, fill-in-the-middle, embeddings, an error."""

import asyncio
import os

from mistralai.client import Mistral
from mistralai.client.errors import SDKError

PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}


def said(prompt):
    return [{"role": "user", "content": prompt}]


async def ask_async(client):
    asked = [client.chat.complete_async(model="mistral-x", messages=said("same")) for _ in range(2)]
    for answer in await asyncio.gather(*asked):
        print("async", answer.choices[0].message.content)
    async for event in await client.chat.stream_async(model="mistral-x", messages=said("stream")):
        print("async event", event.data.choices[0].delta.content)


with Mistral(server_url=os.environ["MISTRAL_SERVER_URL"]) as client:
    answer = client.chat.complete(model="mistral-x", messages=said("hello"), temperature=0.3, random_seed=5)
    print("chat", answer.id, answer.model, answer.choices[0].message.content, answer.usage.total_tokens)
    for event in client.chat.stream(model="mistral-x", messages=said("stream")):
        print("event", event.data.model_dump_json())
    paid = client.chat.complete(model="mistral-x", messages=said('use tool pay with {"amount": 190000}'), tools=[PAY])
    print("tool", paid.choices[0].message.tool_calls)
    try:
        client.chat.complete(model="mistral-x", messages=said("fail 400 always"))
    except SDKError as exc:
        print("error", exc.status_code, exc.body)
    print("embedding", client.embeddings.create(model="embed-x", inputs=["a", "b"]).data[1].embedding)
    asyncio.run(ask_async(client))
