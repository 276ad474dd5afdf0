"""Asking a human from an agent's code: `spanreplay.human.input("Refund $12?")`.

The answer is recorded like a tool's. If SPANREPLAY_HUMAN is `suspend` and no terminal can answer, the run is suspended:
it ends with status 7, and `spanreplay resume RUN --input ANSWER` continues it in another process, even days later,
without repeating or paying again for what was already done. Built-in `input()` does the same.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

__all__ = ["ainput", "input"]


def input(prompt: object = "", *, choices: Sequence[str] = ()) -> str:  # noqa: A001 -- it stands for the built-in
    """Return a human's answer, one of `choices` if given. Raises: EOFError, as the built-in does."""
    from spanreplay.runtime.run import active_run

    run = active_run()
    if run is None:
        return _ask_until(prompt, choices)
    from spanreplay.seams.machine.human import ask

    return ask(run, lambda p: _ask_until(p, choices), prompt, choices)


async def ainput(prompt: object = "", *, choices: Sequence[str] = ()) -> str:
    """As `input`, without blocking the event loop."""
    import asyncio

    from spanreplay.runtime.run import active_run

    run = active_run()
    if run is None:
        return await asyncio.to_thread(_ask_until, prompt, choices)
    from spanreplay.seams.machine.human import ask_async

    return await ask_async(run, lambda p: _ask_until(p, choices), prompt, choices)


def _ask_until(prompt: object, choices: Sequence[str]) -> str:
    while True:
        answer = builtins.input(str(prompt))
        if not choices or answer in choices:
            return answer
