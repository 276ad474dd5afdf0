"""The loop that every agent here runs: ask the model, call the tools that it names, until it answers."""

import json
import os

from langchain_core.utils.function_calling import convert_to_openai_tool
from openai import OpenAI

TURNS_MAX = 8
MODEL = os.environ.get("AGENT_MODEL", "gpt-x")
client = OpenAI()


def ask(system, prompt, tools=()):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    by_name = {tool.name: tool for tool in tools}
    offered = {"tools": [convert_to_openai_tool(tool) for tool in tools]} if tools else {}
    for _ in range(TURNS_MAX):
        answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0.7, **offered)
        message = answer.choices[0].message
        print("model", message.content, flush=True)
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            args = json.loads(call.function.arguments)
            result = by_name[call.function.name].invoke(
                {"type": "tool_call", "id": call.id, "name": call.function.name, "args": args}
            )
            print("tool", call.function.name, args, type(result).__name__, repr(result.content), flush=True)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
    return None
