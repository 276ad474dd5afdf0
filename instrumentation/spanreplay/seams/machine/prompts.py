"""Seam: prompt_toolkit, and whatever asks with it (questionary, InquirerPy): each question to a person is a call.

What the person sees before typing is compared, what the question returns is given back. An application that fills the
screen is not a question: the agent may work inside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from spanreplay.model import guard, ids, owners
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import asks, recorded_run
from spanreplay.runtime.caller.caller import FRAMES_MAX, handed, is_among, is_ours
from spanreplay.runtime.calls import printed
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.patches import Patches

_ASKS: Final = (owners.compile_row("prompt-toolkit"),)
_HIDES: Final = "PasswordProcessor"
_PASSWORD: Final = "password"  # noqa: S105 -- the redactor treats the whole value under this name as a secret
_ANSWER: Final = "answer"
_SCREEN: Final = "screen"
_WRITES_MAX: Final = 10_000
_WRITERS_MAX: Final = 8
"""So many functions of prompt_toolkit and of ours may lie between what is written and the one that writes it."""
TEXT_MAX: Final = 10_000
"""Characters of a question that are compared."""


def install(module: Any, patches: Patches) -> None:
    """Patch the module of applications."""
    patches.wrap(module.Application, "run", _run)
    patches.wrap(module.Application, "run_async", _run_async)


def _is_question(application: Any) -> bool:
    return recorded_run() is not None and not application.full_screen and _is_asked(sys._getframe(2))


def _is_asked(frame: FrameType | None) -> bool:
    """Whether the code above prompt_toolkit is the agent's, or a library's that asks for it; a task of its own is."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if not (is_ours(name) or is_among(name, _ASKS) or ids.is_stdlib_file(name)):
            return asks(frame)
        frame = frame.f_back
    return not handed.is_background


class _Screen:
    """What prompt_toolkit writes to standard output while a question is asked; a replay writes it again."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def __enter__(self) -> _Screen:
        printed.byte_listeners.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        printed.byte_listeners.remove(self._note)

    def _note(self, chunk: bytes) -> None:
        if len(self._chunks) < _WRITES_MAX and _is_asking(sys._getframe(1)):
            self._chunks.append(chunk)

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode("utf-8", "surrogateescape")


def _is_asking(frame: FrameType | None) -> bool:
    for _ in range(_WRITERS_MAX):
        if frame is None:
            return False
        if is_among(frame.f_code.co_filename, _ASKS):
            return True
        frame = frame.f_back
    return False


def _run(wrapped: Any, application: Any, args: Any, kwargs: Any) -> Any:
    if not _is_question(application):
        return wrapped(*args, **kwargs)
    name, ended = _member_of(application), []

    def ask() -> dict[str, Any]:
        with _Screen() as screen:
            ended.append(wrapped(*args, **kwargs))
        return {name: ended[0], _SCREEN: screen.text}

    told = call_sync(lambda: _describe(application), ask)
    return ended[0] if ended else _show(told, name)


async def _run_async(wrapped: Any, application: Any, args: Any, kwargs: Any) -> Any:
    if not _is_question(application):
        return await wrapped(*args, **kwargs)
    name, ended = _member_of(application), []

    async def ask() -> dict[str, Any]:
        with _Screen() as screen:
            ended.append(await wrapped(*args, **kwargs))
        return {name: ended[0], _SCREEN: screen.text}

    told = await call_async(lambda: _describe(application), ask)
    return ended[0] if ended else _show(told, name)


def _show(told: Any, name: str) -> Any:
    """Show what was on the screen; return the answer."""
    text, stdout = told.get(_SCREEN), sys.__stdout__
    if text and stdout is not None:
        stdout.flush()
        stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        stdout.buffer.flush()
    return told[name]


def _describe(application: Any) -> FunctionCall:
    text = " ".join(guard.guarded("a question", lambda: [*_texts(application)]) or ())[:TEXT_MAX]
    return FunctionCall(Kind.HUMAN.value, "prompt", Effect.READ.value, {"prompt": text})


def _member_of(application: Any) -> str:
    """The name under which the answer is recorded: a password's, if what is typed is not shown."""
    hides = guard.guarded("a question", lambda: any(_hides(each) for each in _processors(application)))
    return _PASSWORD if hides else _ANSWER


# ── What the person sees ────────────────────────────────────────────────────────────────────────────
def _windows(container: Any) -> Iterator[Any]:
    """The visible windows of an application, from its outermost container."""
    if hasattr(container, "get_line_prefix"):
        yield container
    elif hasattr(container, "filter"):  # shown under a condition
        shown = container.content if container.filter() else getattr(container, "alternative_content", None)
        if shown is not None:
            yield from _windows(shown)
    else:
        for each in container.get_children():
            yield from _windows(each)


def _processors(application: Any) -> Iterator[Any]:
    for window in _windows(application.layout.container):
        yield from getattr(window.content, "input_processors", None) or ()


def _hides(processor: Any) -> bool:
    inner = getattr(processor, "processor", None)
    if inner is not None and hasattr(processor, "filter"):  # a processor under a condition
        return bool(processor.filter()) and _hides(inner)
    return type(processor).__name__ == _HIDES


def _texts(application: Any) -> Iterator[str]:
    from prompt_toolkit.formatted_text import fragment_list_to_text, to_formatted_text

    for window in _windows(application.layout.container):
        content, prefix = window.content, window.get_line_prefix
        shown = [] if prefix is None else [prefix(0, 0)]
        parts = (content, *(getattr(content, "input_processors", None) or ()))
        for each in (*shown, *(getattr(part, "text", None) for part in parts)):
            text = fragment_list_to_text(to_formatted_text(each))
            if text:
                yield text
        buffer = getattr(content, "buffer", None)
        if buffer is not None and buffer.text:
            yield buffer.text
