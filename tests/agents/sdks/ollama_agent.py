"""Talks to Ollama: chat, generate, streams as JSON lines, tools, embeddings, an error."""

import asyncio

import httpx
import ollama

PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}


def said(prompt):
    return [{"role": "user", "content": prompt}]


answer = ollama.chat(model="llama-x", messages=said("hello"), options={"temperature": 0.3, "seed": 5})
print("chat", answer.model, answer.message.content, answer.eval_count)
for chunk in ollama.chat(model="llama-x", messages=said("stream"), stream=True):
    print("chunk", chunk.model_dump_json())
paid = ollama.chat(model="llama-x", messages=said('use tool pay with {"amount": 190000}'), tools=[PAY])
print("tool", paid.message.tool_calls)
print("generate", ollama.generate(model="llama-x", prompt="hello", system="You are terse.").response)
for chunk in ollama.generate(model="llama-x", prompt="stream", stream=True):
    print("generate chunk", chunk.response)
try:
    ollama.chat(model="llama-x", messages=said("fail 400 always"))
except ollama.ResponseError as exc:
    print("error", exc.status_code, exc.error)
print("embed", ollama.embed(model="embed-x", input=["a", "b"]).embeddings)

try:
    for chunk in ollama.chat(model="llama-x", messages=said("drop connection mid-stream"), stream=True):
        print("dropped", chunk)
except httpx.RemoteProtocolError as exc:
    print("dropped", type(exc).__name__)


async def main():
    client = ollama.AsyncClient()
    for answer in await asyncio.gather(*[client.chat(model="llama-x", messages=said("same")) for _ in range(2)]):
        print("async", answer.message.content)
    async for chunk in await client.chat(model="llama-x", messages=said("stream"), stream=True):
        print("async chunk", chunk.message.content)


asyncio.run(main())
