"""Talks to a realtime model: text, a function call, sound; sync, then async with two conversations at once."""

import asyncio
import base64

from openai import AsyncOpenAI, OpenAI

PAY = {"type": "function", "name": "pay", "parameters": {"type": "object", "properties": {}}}
TEXT = {"type": "realtime", "output_modalities": ["text"], "instructions": "You are terse.", "tools": [PAY]}
SOUND = {"type": "realtime", "output_modalities": ["audio"], "instructions": "You are terse."}


def item(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def show(connection):
    for event in connection:
        print(event.model_dump_json())
        if event.type == "response.done":
            return event.response
    raise EOFError


with OpenAI().realtime.connect(model="gpt-realtime-x") as connection:
    connection.session.update(session=TEXT)
    connection.conversation.item.create(item=item("hello"))
    connection.response.create()
    show(connection)
    connection.conversation.item.create(item=item('use tool pay with {"amount": 190000}'))
    connection.response.create()
    call = show(connection).output[0]
    paid = {"type": "function_call_output", "call_id": call.call_id, "output": "paid " + call.arguments}
    connection.conversation.item.create(item=paid)
    connection.response.create()
    show(connection)
    connection.send({"type": "nonsense"})
    print(connection.recv().error.message)


async def speak(name):
    heard = b""
    async with AsyncOpenAI().realtime.connect(model="gpt-realtime-x") as connection:
        await connection.session.update(session=SOUND)
        for _ in range(3):
            await connection.input_audio_buffer.append(audio=base64.b64encode(name.encode() * 100).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        async for event in connection:
            if event.type == "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
            elif event.type == "response.done":
                return name, event.response.output[0].content[0].transcript, heard.replace(b"\0", b"")
    raise EOFError


async def main():
    for found in await asyncio.gather(speak("one"), speak("two")):
        print(found)


asyncio.run(main())
