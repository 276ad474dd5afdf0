"""Talks to Cohere: chat of both versions, streams, tools, embeddings, reranking, an error."""

import asyncio

import cohere
import httpx
from cohere.errors import TooManyRequestsError

PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}
OLD_PAY = {"name": "pay", "description": "Pay", "parameter_definitions": {}}
pay = 'use tool pay with {"amount": 190000}'


def said(prompt):
    return [{"role": "user", "content": prompt}]


client = cohere.ClientV2()
answer = client.chat(model="command-x", messages=said("hello"), temperature=0.3)
print("chat", answer.id, answer.message.content[0].text, answer.usage.tokens)
for event in client.chat_stream(model="command-x", messages=said("stream")):
    print("event", event.model_dump_json())
print("tool", client.chat(model="command-x", messages=said(pay), tools=[PAY]).message.tool_calls)
for event in client.chat_stream(model="command-x", messages=said(pay), tools=[PAY]):
    print("tool event", event.model_dump_json())
try:
    client.chat(model="command-x", messages=said("fail 429 always"), request_options={"max_retries": 0})
except TooManyRequestsError as exc:
    print("error", exc.status_code, exc.body)
embedded = client.embed(model="embed-x", texts=["a", "b"], input_type="search_query", embedding_types=["float"])
print("embed", embedded.embeddings.float_)
ranked = client.rerank(model="rank-x", query="which?", documents=["one", "two", "three"], top_n=2)
print("rerank", [(each.index, each.relevance_score) for each in ranked.results])
old = cohere.Client()
print("old", old.chat(model="command-x", message="hello", preamble="You are terse.").text)
for event in old.chat_stream(model="command-x", message="stream"):
    print("old event", event.model_dump_json())
print("old tool", old.chat(model="command-x", message=pay, tools=[OLD_PAY]).tool_calls)

try:
    for chunk in client.chat_stream(model="command-x", messages=said("drop connection mid-stream")):
        print("dropped", chunk)
except httpx.RemoteProtocolError as exc:
    print("dropped", type(exc).__name__)


async def main():
    async with cohere.AsyncClientV2() as made:
        asked = [made.chat(model="command-x", messages=said("same")) for _ in range(2)]
        for answer in await asyncio.gather(*asked):
            print("async", answer.message.content[0].text)
        async for event in made.chat_stream(model="command-x", messages=said("stream")):
            print("async event", event.type)


asyncio.run(main())
