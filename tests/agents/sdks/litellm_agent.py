"""Talks to several providers through LiteLLM: sync, async, streams, tools, embeddings, an error."""

import asyncio
import gc
import os

import litellm

litellm.suppress_debug_info = True  # it is printed on standard output
PAY = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}
OLLAMA = {"model": "ollama_chat/llama-x", "api_base": os.environ["OLLAMA_HOST"]}
BEDROCK = {
    "model": "bedrock/converse/us.amazon.nova-x-v1:0",
    "aws_bedrock_runtime_endpoint": os.environ["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"],
}
CLAUDE = {"model": "anthropic/claude-x", "api_base": os.environ["ANTHROPIC_BASE_URL"]}
HOSTED = {"model": "hosted_vllm/llama-x", "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "sk-test"}


def said(prompt):
    return [{"role": "user", "content": prompt}]


def show(label, answer):
    message = answer.choices[0].message
    calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or []]
    print(label, message.content, calls, answer.usage.total_tokens)


for name in (OLLAMA, BEDROCK, CLAUDE, HOSTED):
    show(name["model"], litellm.completion(**name, messages=said("hello"), temperature=0.3, num_retries=0))
    for chunk in litellm.completion(**name, messages=said("stream"), stream=True, num_retries=0):
        print(name["model"], "chunk", chunk.choices[0].delta.content)
    # LiteLLM leaves a stream in a reference cycle. httpcore closes it when that is collected, and where that happens in
    # the midst of another request it waits for its own lock for ever, recorded or not
    gc.collect()


async def main():
    for name in (OLLAMA, BEDROCK, CLAUDE, HOSTED):
        show(name["model"], await litellm.acompletion(**name, messages=said("hello"), num_retries=0))
        async for chunk in await litellm.acompletion(**name, messages=said("stream"), stream=True, num_retries=0):
            print(name["model"], "async chunk", chunk.choices[0].delta.content)
        gc.collect()
    asked = [litellm.acompletion(**HOSTED, messages=said("same"), num_retries=0) for _ in range(2)]
    for answer in await asyncio.gather(*asked):
        show("together", answer)
    pay = said('use tool pay with {"amount": 190000}')
    show("tool", await litellm.acompletion(**HOSTED, messages=pay, tools=[PAY], num_retries=0))
    try:
        await litellm.acompletion(**HOSTED, messages=said("fail 400 always"), num_retries=0)
    except litellm.BadRequestError as exc:
        print("error", exc.status_code)


asyncio.run(main())
