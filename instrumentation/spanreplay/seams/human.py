"""Asking a human from an agent's code: `spanreplay.human.input("Refund $12?")`.

The answer is recorded like a tool's. Where SPANREPLAY_HUMAN is `suspend` and no terminal can answer, the run is
suspended: it ends with status 7, and `spanreplay resume RUN --input ANSWER` goes on with it in another process, days
later if need be, without making or paying again what was done before. Built-in `input()` does the same.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

__all__ = ["ainput", "input"]


def input(prompt: object = "", *, choices: Sequence[str] = ()) -> str:  # noqa: A001 -- it stands for the built-in
    """What a human answers; of `choices` if there are any. Raises: EOFError, as the built-in one does."""
    from spanreplay.runtime.run import active_run

    run = active_run()
    if run is None:
        return _ask_until(prompt, choices)
    from spanreplay.seams.machine.human import ask

    return ask(run, lambda p: _ask_until(p, choices), prompt, choices)


async def ainput(prompt: object = "", *, choices: Sequence[str] = ()) -> str:
    """The same without blocking the event loop."""
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
