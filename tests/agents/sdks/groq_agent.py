"""Talks to Groq: chat, streams, tools, an error."""

import asyncio

import httpx
from groq import AsyncGroq, BadRequestError, Groq

PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}


def said(prompt):
    return [{"role": "user", "content": prompt}]


client = Groq()
answer = client.chat.completions.create(model="llama-x", messages=said("hello"), temperature=0.3, seed=5)
print("chat", answer.id, answer.model, answer.choices[0].message.content, answer.usage.total_tokens)
for chunk in client.chat.completions.create(model="llama-x", messages=said("stream"), stream=True):
    print("chunk", chunk.model_dump_json())
pay = said('use tool pay with {"amount": 190000}')
print("tool", client.chat.completions.create(model="llama-x", messages=pay, tools=[PAY]).choices[0].message.tool_calls)
try:
    client.chat.completions.create(model="llama-x", messages=said("fail 400 always"))
except BadRequestError as exc:
    print("error", exc.status_code, exc.body)

try:
    for chunk in client.chat.completions.create(
        model="llama-x", messages=said("drop connection mid-stream"), stream=True
    ):
        print("dropped", chunk)
except httpx.RemoteProtocolError as exc:
    print("dropped", type(exc).__name__)


async def main():
    async with AsyncGroq() as made:
        asked = [made.chat.completions.create(model="llama-x", messages=said("same")) for _ in range(2)]
        for answer in await asyncio.gather(*asked):
            print("async", answer.choices[0].message.content)


asyncio.run(main())
