"""Seam: `input()` and `getpass.getpass()` in the agent's code; and the suspension of a run that waits for a human."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import Suspended
from spanreplay.runtime.agent_patches import Patch, asks, install_patch, recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
PROMPT_CHARACTERS_MAX: Final = 1000


def _is_console() -> bool:
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def _echo(prompt: object) -> None:
    if sys.stdout is not None:
        sys.stdout.write(str(prompt))
        sys.stdout.flush()


class _Question:
    """One question, answered by the human, by the person who resumes the run, or by the recording."""

    def __init__(self, run: Run, real: Callable[[Any], Any], prompt: object, choices: Sequence[str]) -> None:
        self._run = run
        self._real = real
        self._prompt = prompt
        self._choices = list(choices)
        self.is_asked = False

    def describe(self) -> FunctionCall:
        """Describe the question as a call."""
        arguments: dict[str, Any] = {"prompt": str(self._prompt)}
        if self._choices:
            arguments["choices"] = self._choices
        return FunctionCall(Kind.HUMAN.value, "input", Effect.READ.value, arguments, prints=False)

    def take_answer(self) -> tuple[bool, Any]:
        """Return the answer given when the run was resumed, if it is due; suspend the run if nobody can answer."""
        continuation = self._run.continuation
        if continuation is not None:
            has_answer, answer = continuation.take_answer()
            if has_answer:
                return True, answer
        may_suspend = self._run.resolver.keeps or continuation is not None
        if may_suspend and config.read_setting("SPANREPLAY_HUMAN") == "suspend" and not _is_console():
            _echo(self._prompt)
            suspend(self._run, str(self._prompt))
        return False, None

    def ask(self) -> Any:
        """Ask the human."""
        self.is_asked = True
        if self._run.output is not None and _is_console():
            sys.stdout.flush()
            self._run.output.note(str(self._prompt))  # on a console the prompt bypasses sys.stdout
        return self._real(self._prompt)

    def live(self) -> Any:
        """Return the answer."""
        has_answer, answer = self.take_answer()
        return answer if has_answer else self.ask()

    async def live_async(self) -> Any:
        """Return the answer; the event loop keeps running meanwhile."""
        has_answer, answer = self.take_answer()
        return answer if has_answer else await asyncio.to_thread(self.ask)

    def echo(self) -> None:
        """Show the prompt if asking has not already shown it."""
        if not self.is_asked:
            _echo(self._prompt)


def ask(run: Run, real: Callable[[Any], Any], prompt: object, choices: Sequence[str] = ()) -> str:
    """Ask a question as a recorded call."""
    question = _Question(run, real, prompt, choices)
    try:
        answer: str = call_sync(question.describe, question.live)
    except Exception:
        question.echo()
        raise
    question.echo()
    return answer


async def ask_async(run: Run, real: Callable[[Any], Any], prompt: object, choices: Sequence[str] = ()) -> str:
    """Ask a question as a recorded call, from a coroutine."""
    question = _Question(run, real, prompt, choices)
    live: Callable[[], Awaitable[str]] = question.live_async
    try:
        answer = await call_async(question.describe, live)
    except Exception:
        question.echo()
        raise
    question.echo()
    return answer


def suspend(run: Run, prompt: str) -> NoReturn:
    """End the run where it waits for an answer; `Suspended` ends the process, or leaves the run's block."""
    crossing = current_crossing(run.root_lane)
    shown = run.redactor.text(prompt)[:PROMPT_CHARACTERS_MAX]
    run.suspended = {"seq": -1 if crossing is None else crossing.seq, "prompt": shown}
    if run.on_suspend is not None:
        run.on_suspend(shown)
    run.finish(Outcome.ERROR)
    raise Suspended(f"run {run.run_id} waits for an answer to {shown!r}")


def _patch_input(patches: Patches) -> None:
    real = builtins.input

    def call(patch: Patch, prompt: object = "", /) -> str:
        run = recorded_run() if asks(_getframe(1)) else None
        return real(prompt) if run is None else ask(run, real, prompt)

    install_patch(patches, builtins, "input", call, Patch("builtins", "input", real))


def _patch_getpass(patches: Patches, module: Any) -> None:
    real = module.getpass

    def call(patch: Patch, prompt: str = "Password: ", stream: Any = None, **kwargs: Any) -> str:
        if not asks(_getframe(1)) or recorded_run() is None:
            return str(real(prompt, stream, **kwargs))

        def describe() -> FunctionCall:
            return FunctionCall(Kind.HUMAN.value, "getpass", Effect.READ.value, {"prompt": prompt})

        # The redactor treats the whole value under this name as a secret
        answer = call_sync(describe, lambda: {"password": real(prompt, stream, **kwargs)})
        return str(answer["password"])

    install_patch(patches, module, "getpass", call, Patch("getpass", "getpass", real))


def install(module: Any, patches: Patches) -> None:
    """Patch `builtins` or `getpass`."""
    if module is builtins:
        _patch_input(patches)
    else:
        _patch_getpass(patches, module)
