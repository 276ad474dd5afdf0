"""Whose use of a client is the run's: decided by the first code above it that acts by itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.metadata import files
from typing import Any

import pytest

from spanreplay.seams.machine import asked

CLIENTS = frozenset({"redis"})


def code_of(distribution: str) -> Callable[[Callable[[], Any]], Any]:
    """A function that stands in a file of an installed package, and calls what it is given."""
    path = next(each for each in files(distribution) or () if each.suffix == ".py" and "__init__" not in each.name)
    space: dict[str, Any] = {}
    exec(compile("def use(called):\n    return called()\n", str(path.locate()), "exec"), space)  # noqa: S102
    made: Callable[[Callable[[], Any]], Any] = space["use"]
    return made


def is_asked_in_a_thread(distributions: list[str], *, is_unseen_below: bool) -> bool:
    """Whether code of these packages, the first outermost, in a thread without the agent's code, asks for the run."""
    found: list[bool] = []

    def ask() -> None:
        frame = sys._getframe(1)
        found.append(asked._is_asked(frame, CLIENTS, is_unseen_below=is_unseen_below, is_kept=False))

    called: Callable[[], Any] = ask
    for name in reversed(distributions):
        called = _calling(code_of(name), called)
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    return found[0]


def _calling(code: Callable[[Callable[[], Any]], Any], called: Callable[[], Any]) -> Callable[[], Any]:
    space: dict[str, Any] = {"code": code, "called": called}
    exec(compile("def run():\n    return code(called)\n", threading.__file__, "exec"), space)  # noqa: S102
    made: Callable[[], Any] = space["run"]
    return made


@pytest.mark.parametrize(
    ("stack", "seen_below", "unseen_below"),
    [
        (["redis"], True, True),
        (["opentelemetry-api"], True, False),
        (["opentelemetry-api", "redis"], True, False),
        (["jinja2", "opentelemetry-api", "redis"], True, True),
        (["httpx", "redis"], True, True),
        (["gunicorn", "redis"], False, True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_s50_who_acts_by_itself_decides(stack: list[str], seen_below: bool, unseen_below: bool) -> None:
    """A library's use is the run's, a server's only where nothing can be seen below, a reporting tool's own never."""
    assert is_asked_in_a_thread(stack, is_unseen_below=False) is seen_below
    assert is_asked_in_a_thread(stack, is_unseen_below=True) is unseen_below
