"""Five questions with the OpenAI SDK; prints what the program got."""

import json

from openai import BadRequestError, OpenAI

client = OpenAI()
PAY = {
    "type": "function",
    "function": {
        "name": "pay",
        "description": "Pay an amount",
        "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
    },
}


def ask(prompt, **more):
    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": prompt}]
    return client.chat.completions.create(model="gpt-x", messages=messages, **more)


def show(answer):
    message = answer.choices[0].message
    calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or []]
    print(json.dumps({"text": message.content or "", "calls": calls}))


show(ask("Hello.", temperature=0.7, top_p=0.9, max_tokens=50, seed=7))
show(ask("Hello again."))
chunks = ask("Stream.", temperature=0, stream=True, stream_options={"include_usage": True})
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
print(json.dumps({"text": text, "calls": []}))
show(ask('use tool pay with {"amount": 190000}', temperature=1.3, tools=[PAY]))
try:
    ask("fail 400 always", temperature=0.2)
except BadRequestError as exc:
    print(json.dumps({"error": exc.status_code}))
