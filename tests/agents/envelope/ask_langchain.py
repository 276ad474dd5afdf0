"""Five questions with LangChain; prints what the program got."""

import json

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def ask(prompt):
    return [("system", "You are terse."), ("user", prompt)]


def show(answer):
    calls = [[call["name"], json.dumps(call["args"])] for call in answer.tool_calls]
    print(json.dumps({"text": answer.content, "calls": calls}))


def model(**more):
    return ChatOpenAI(model="gpt-x", **more)


show(model(temperature=0.7, top_p=0.9, max_tokens=50, seed=7).invoke(ask("Hello.")))
show(model().invoke(ask("Hello again.")))
text = "".join(chunk.content for chunk in model(temperature=0, stream_usage=True).stream(ask("Stream.")))
print(json.dumps({"text": text, "calls": []}))
show(model(temperature=1.3).bind_tools([pay]).invoke(ask('use tool pay with {"amount": 190000}')))
try:
    model(temperature=0.2).invoke(ask("fail 400 always"))
except BadRequestError as exc:
    print(json.dumps({"error": exc.status_code}))
