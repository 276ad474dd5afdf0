"""The part of test agents that asks a model with Groq's SDK, with and without an event loop."""

from __future__ import annotations

from typing import Final

GROQ_ASKING: Final = """
import random
from groq import AsyncGroq, Groq

SEED = random.random()

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def ask_async(text):
    made = await AsyncGroq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content
"""
"""Defines `SEED`, `ask(text)` and `ask_async(text)`."""
