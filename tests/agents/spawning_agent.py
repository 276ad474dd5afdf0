"""An agent that asks a model, and has other Pythons ask it too: by `subprocess` and by asyncio."""

import asyncio
import subprocess
import sys

import openai

CHILD = """
import openai

answer = openai.OpenAI().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "in a child"}])
print("child:", answer.choices[0].message.content)
"""


def ask() -> str:
    """One model call of this process."""
    question = [{"role": "user", "content": "in the parent"}]
    return str(openai.OpenAI().chat.completions.create(model="gpt-x", messages=question).choices[0].message.content)


async def spawn() -> str:
    """One in a process that asyncio starts."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()


print(ask())
print(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout)
print(asyncio.run(spawn()))
