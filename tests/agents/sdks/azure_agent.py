"""Talks to Azure OpenAI: deployments, the v1 API, streams, tools, embeddings, an error."""

import asyncio
import os

from openai import AsyncAzureOpenAI, AzureOpenAI, OpenAI, RateLimitError

ENDPOINT = os.environ["AZURE_OPENAI_ENDPOINT"]
VERSION = "2024-10-21"
PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}
client = AzureOpenAI(azure_endpoint=ENDPOINT, api_version=VERSION, max_retries=0)


def ask(prompt, made=client, **more):
    return made.chat.completions.create(model="prod", messages=[{"role": "user", "content": prompt}], **more)


answer = ask("hello", temperature=0.7)
print("chat", answer.id, answer.model, answer.choices[0].message.content)
for chunk in ask("stream", stream=True, stream_options={"include_usage": True}):
    print("chunk", chunk.model_dump_json())
print("tool", ask('use tool pay with {"amount": 190000}', tools=[PAY]).choices[0].message.tool_calls)
try:
    ask("fail 429 always")
except RateLimitError as exc:
    print("error", exc.status_code, exc.body)
print("embedding", client.embeddings.create(model="embed", input=["a", "b"]).data[1].embedding)
v1 = OpenAI(base_url=ENDPOINT + "/openai/v1", api_key=os.environ["AZURE_OPENAI_API_KEY"])
print("v1", ask("over v1", v1).choices[0].message.content)


async def main():
    async with AsyncAzureOpenAI(azure_endpoint=ENDPOINT, api_version=VERSION) as made:
        same = [{"role": "user", "content": "same"}]
        asked = [made.chat.completions.create(model="prod", messages=same) for _ in range(2)]
        for answer in await asyncio.gather(*asked):
            print("async", answer.choices[0].message.content)
        stream = await made.chat.completions.create(
            model="prod", messages=[{"role": "user", "content": "stream"}], stream=True
        )
        async for chunk in stream:
            print("async chunk", chunk.choices[0].delta.content)


asyncio.run(main())
