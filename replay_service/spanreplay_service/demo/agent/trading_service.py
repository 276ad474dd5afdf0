"""The trading assistant as a service: an order is a request, and the customer sees how it goes.

usage: python -m uvicorn trading_service:app
"""

import json

import trading_agent
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from langchain_core.messages import AIMessageChunk
from pydantic import BaseModel

app = FastAPI()
agent = trading_agent.make_agent()


class Asked(BaseModel):
    user: str
    request: str


@app.post("/orders")
async def order(asked: Asked):
    trading_agent.USER.set(asked.user)
    return StreamingResponse(work(asked), media_type="application/x-ndjson")


def work(asked):
    """Yield each piece of the model's answer as it arrives, and finally the confirmation."""
    messages = {"messages": [("user", asked.request)]}
    for mode, found in agent.stream(messages, stream_mode=["messages", "values"]):
        if mode == "values":
            last = found["messages"][-1]
        elif isinstance(found[0], AIMessageChunk):
            for call in found[0].tool_call_chunks:
                yield json.dumps({"tool": call["name"], "arguments": call["args"]}) + "\n"
    yield json.dumps({"user": asked.user, "confirmation": last.content}) + "\n"
