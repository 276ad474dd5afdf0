"""Setting context variables while the garbage collector may run; before Python 3.12 it may run inside `set`."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spanreplay.runtime import context_variables
from spanreplay.runtime.context_variables import call_in_own_context, is_collecting, reset_variable, set_variable

before_3_12 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="it collects between instructions only")


@pytest.fixture
def variable() -> Iterator[contextvars.ContextVar[str]]:
    """A variable that is set to `outer`."""
    made: contextvars.ContextVar[str] = contextvars.ContextVar("made", default="none")
    token = made.set("outer")
    yield made
    made.reset(token)


class Left:
    """An object in a reference cycle that calls a function when the collector frees it."""

    def __init__(self, last: Callable[[], object]) -> None:
        self.itself, self.last = self, last

    def __del__(self) -> None:
        self.last()


@before_3_12
def test_n1_what_a_collection_runs_sets_nothing(variable: contextvars.ContextVar[str]) -> None:
    """A finalizer sets nothing in the current Context, only in one of its own, and undoes nothing set outside."""
    seen: list[object] = []
    outside = set_variable(variable, "set")

    def last() -> None:
        seen.append(is_collecting())
        reset_variable(variable, set_variable(variable, "torn"))
        reset_variable(variable, outside)
        seen.append(variable.get())
        seen.append(call_in_own_context(lambda: (set_variable(variable, "own"), variable.get())[1]))
        seen.append((is_collecting(), variable.get()))

    Left(last)
    gc.collect()
    assert seen == [True, "set", "own", (True, "set")]
    assert not is_collecting()
    reset_variable(variable, outside)
    assert variable.get() == "outer"


def test_n1_what_the_end_of_a_value_sets_comes_behind_the_reset(variable: contextvars.ContextVar[str]) -> None:
    """A value is freed after its variable was reset, so a value that its finalizer sets remains."""
    values: contextvars.ContextVar[object] = contextvars.ContextVar("values")

    class Value:
        def __del__(self) -> None:
            values.set("by its end")

    values.set("before")
    reset_variable(values, set_variable(values, Value()))
    assert values.get() == contextvars.copy_context()[values] == "by its end"


def _set_while_others_do(variable: contextvars.ContextVar[str], is_on: list[bool], turns: int) -> None:
    class Watched:
        def set(self, value: str) -> None:
            is_on.append(gc.isenabled())

    for _ in range(turns):
        set_variable(Watched(), "x")  # type: ignore[arg-type]  # it notes whether the collector is on
        reset_variable(variable, set_variable(variable, "x"))


@before_3_12
def test_n1_threads_that_set_side_by_side_keep_the_collector_off(variable: contextvars.ContextVar[str]) -> None:
    """The collector is off while any thread sets a variable, and on again when none does."""
    is_on: list[bool] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        made = [threading.Thread(target=_set_while_others_do, args=(variable, is_on, 3_000)) for _ in range(4)]
        for thread in made:
            thread.start()
        for thread in made:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(is_on) == 12_000
    assert not any(is_on)
    assert gc.isenabled()


@before_3_12
def test_n1_a_thread_that_sets_while_another_ends_keeps_the_collector_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins after the last entry is gone and before the collector is on again, which isn't the user's doing."""
    began, ended, is_on = threading.Event(), threading.Event(), list[bool]()

    class Second:
        def set(self, value: str) -> None:
            began.set()
            assert ended.wait(60)
            is_on.append(gc.isenabled())

    class First:
        def set(self, value: str) -> None:
            """Nothing."""

    second = threading.Thread(target=set_variable, args=(Second(), "x"))

    class Entries(list[None]):
        def pop(self, *args: Any) -> None:
            super().pop(*args)
            if not second.ident:
                second.start()
                assert began.wait(60)

    monkeypatch.setattr(context_variables, "_setting", Entries())
    set_variable(First(), "x")  # type: ignore[arg-type]  # as above
    ended.set()
    second.join()
    assert is_on == [False]
    assert gc.isenabled()


@before_3_12
def test_n1_a_process_that_is_forked_meanwhile_collects_garbage() -> None:
    """The thread that switched the collector off does not exist in the child."""

    statuses: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    class Forking:
        def set(self, value: str) -> None:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()

    set_variable(Forking(), "x")  # type: ignore[arg-type]  # another thread forks while it sets
    assert statuses == [0]
    assert gc.isenabled()


INTERRUPTED = """
import _thread, gc, signal
import spanreplay.runtime.context_variables
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    list(map(gc.collect, map(bool, map(_thread.interrupt_main, [signal.SIGINT]))))  # no line of Python comes between
except KeyboardInterrupt:
    print("interrupted")
"""


def test_n1_an_interrupt_that_comes_as_a_collection_begins_is_not_lost() -> None:
    """Our collector callbacks are not written in Python, because an exception raised in one is lost."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
