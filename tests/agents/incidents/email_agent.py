"""A mailer that answers one customer and writes to all: the list's name is a customer's name too."""

import json
from pathlib import Path

from langchain_core.tools import tool
from loop import MODEL, ask, client

LISTS = {"kim": ["kim@example.test", "everyone@example.test"]}


@tool
def write_draft(topic: str) -> str:
    """Let the model write the text of a mail."""
    messages = [{"role": "user", "content": f"Write a mail about {topic}."}]
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0.9).choices[0].message.content


@tool
def send_mail(to: str, text: str) -> dict:
    """Send a mail."""
    with Path("outbox.jsonl").open("a", encoding="utf-8") as outbox:
        for address in LISTS[to]:
            outbox.write(json.dumps({"to": address, "text": text}) + "\n")
    return {"sent": len(LISTS[to])}


draft = write_draft.invoke({"topic": "the late parcel of Kim"})
print("draft", draft)
ask(
    "You answer mail.",
    f"use tool send_mail with {json.dumps({'to': 'kim', 'text': 'Your parcel is late.'})}",
    [send_mail],
)
