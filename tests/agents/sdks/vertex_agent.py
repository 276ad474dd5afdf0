"""Talks to Vertex AI: Gemini with Google's SDK, Claude with Anthropic's; whole and streamed."""

import asyncio
import os

from anthropic import AnthropicVertex, AsyncAnthropicVertex
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials

BASE = os.environ["VERTEX_BASE_URL"]
gemini = genai.Client(
    vertexai=True,
    project="p",
    location="us-east5",
    credentials=Credentials(token="ya29.test"),
    http_options=types.HttpOptions(base_url=BASE),
)
config = types.GenerateContentConfig(temperature=0.3, system_instruction="You are terse.")
print("gemini", gemini.models.generate_content(model="gemini-x", contents="hello", config=config).text)
for chunk in gemini.models.generate_content_stream(model="gemini-x", contents="stream"):
    print("gemini chunk", chunk.text)
print("gemini tokens", gemini.models.count_tokens(model="gemini-x", contents="hello").total_tokens)
print("embedding", gemini.models.embed_content(model="embed-x", contents="a").embeddings[0].values)

known = {"region": "us-east5", "project_id": "p", "access_token": "ya29.test", "base_url": BASE + "/v1"}
asked = {"model": "claude-x@20260101", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
claude = AnthropicVertex(**known)
print("claude", claude.messages.create(**asked).content[0].text)
with claude.messages.stream(**asked) as stream:
    for text in stream.text_stream:
        print("claude chunk", text)


async def main():
    async with AsyncAnthropicVertex(**known) as made:
        async for event in await made.messages.create(**asked, stream=True):
            print("claude event", event.type)


asyncio.run(main())
