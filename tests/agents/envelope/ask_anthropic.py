"""Five questions with the Anthropic SDK; prints what the program got."""

import json

from anthropic import Anthropic, BadRequestError

client = Anthropic()
PAY = {
    "name": "pay",
    "description": "Pay an amount",
    "input_schema": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
}


def ask(prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    # The newest SDK warns of temperature and top_p as deprecated arguments; on the wire they are the same.
    return client.messages.create(
        model="claude-x",
        max_tokens=50,
        system="You are terse.",
        messages=messages,
        extra_body=more.pop("body", {}),
        **more,
    )


def show(answer):
    text = "".join(block.text for block in answer.content if block.type == "text")
    calls = [[block.name, json.dumps(block.input)] for block in answer.content if block.type == "tool_use"]
    print(json.dumps({"text": text, "calls": calls}))


show(ask("Hello.", body={"temperature": 0.7, "top_p": 0.9}))
show(ask("Hello again."))
events = ask("Stream.", body={"temperature": 0}, stream=True)
text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
print(json.dumps({"text": text, "calls": []}))
show(ask('use tool pay with {"amount": 190000}', body={"temperature": 1.0}, tools=[PAY]))
try:
    ask("fail 400 always", body={"temperature": 0.2})
except BadRequestError as exc:
    print(json.dumps({"error": exc.status_code}))
