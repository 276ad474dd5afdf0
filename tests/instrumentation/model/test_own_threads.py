"""A fork waits for a module that another thread imports for spanreplay, and for nothing else; turns of threads."""

from __future__ import annotations

import encodings
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from spanreplay.model import own_threads
from spanreplay.model.here import PACKAGE

NAME = "a_module_that_takes_long"


IMPORT = f"import {NAME}"
DECODE = f"try:\n    'text'.encode({NAME!r})\nexcept LookupError:\n    pass"
"""Looks up a codec, which imports a module; this module defines none."""


def _code(source: str, file: str) -> CodeType:
    return compile(source, file, "exec")


def _fork_and_import(source: str, limit_s: int = 10) -> int:
    """Return the exit status of a forked process that imports the module."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(limit_s)
            exec(_code(source, f"{PACKAGE}in_the_child.py"))  # noqa: S102
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Two events: the import has begun, and the import may end."""
    events = ModuleType("events_of_this_test")
    events.begun, events.may_end = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, events.__name__, events)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(encodings, "__path__", [*encodings.__path__, str(tmp_path)])
    code = f"import {events.__name__} as events\nevents.begun.set()\nevents.may_end.wait(60)\n"
    (tmp_path / f"{NAME}.py").write_text(code, encoding="utf-8")
    yield events
    for name in (NAME, f"encodings.{NAME}"):
        sys.modules.pop(name, None)


def _start(file: str, source: str = IMPORT) -> threading.Thread:
    thread = threading.Thread(target=exec, args=(_code(source, file),))
    thread.start()
    return thread


def _set_when_forking(event: threading.Event) -> threading.Thread:
    main = threading.get_ident()

    def look() -> None:
        while True:
            frame = sys._current_frames()[main]
            while frame is not None:
                if frame.f_code is own_threads._before_fork.__code__:
                    event.set()
                    return
                frame = frame.f_back  # type: ignore[assignment]
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    return thread


@pytest.mark.parametrize("source", [IMPORT, DECODE], ids=["module", "codec"])
def test_a_fork_waits_for_an_import_of_ours(
    importing: ModuleType, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Without the wait, nobody would finish that import in the child, and the child would wait for it forever."""
    monkeypatch.setattr(own_threads, "FORK_S_MAX", 60)
    threads = [_start(f"{PACKAGE}lazy.py", source)]
    assert importing.begun.wait(60)
    threads.append(_set_when_forking(importing.may_end))
    assert _fork_and_import(source) == 0
    for thread in threads:
        thread.join()


def test_a_fork_waits_for_no_import_of_the_agents(
    importing: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread that imports a program, which then serves for hours, does not delay a fork."""
    waited: list[object] = []
    monkeypatch.setattr(own_threads, "wait_until", lambda *given: waited.append(given))
    thread = _start(str(tmp_path / "agent.py"))
    assert importing.begun.wait(60)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert waited == []
    importing.may_end.set()
    thread.join()


def test_a_fork_that_waited_in_vain_says_so(
    importing: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fork gives up after the limit and logs that an import was under way."""
    monkeypatch.setattr(own_threads, "FORK_S_MAX", 0.01)
    thread = _start(f"{PACKAGE}lazy.py")
    assert importing.begun.wait(60)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert "a process was forked while another thread imports a module for spanreplay" in caplog.text
    importing.may_end.set()
    thread.join()


def test_one_thread_at_a_time_and_the_same_one_may_enter_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread waits for the first one's end, at most so long; a signal handler of the first doesn't wait."""
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    @own_threads.one_at_a_time
    def end(name: str) -> None:
        order.append(f"{name} begins")
        if name == "first":
            end("handler")
            begun.set()
            assert may_end.wait(60)
        order.append(f"{name} ends")

    first = threading.Thread(target=end, args=("first",))
    first.start()
    assert begun.wait(60)
    monkeypatch.setattr(own_threads, "TURN_S_MAX", 0.01)
    end("impatient")
    monkeypatch.setattr(own_threads, "TURN_S_MAX", 60)
    second = threading.Thread(target=end, args=("second",))
    second.start()
    may_end.set()
    first.join(60)
    second.join(60)
    assert order[:3] == ["first begins", "handler begins", "handler ends"]
    assert order[3:] == ["impatient begins", "impatient ends", "first ends", "second begins", "second ends"]
