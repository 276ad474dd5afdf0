"""The record of a process's end is made before anybody can see that its output has ended."""

from __future__ import annotations

import contextlib
import os
import threading

from spanreplay.seams.machine.processes.processes import _Copy, _pump


def test_n2_end_of_output_is_noted_before_its_reader_sees_it() -> None:
    """If an agent reads to the end and exits at once, the call of the process is recorded."""
    (source, writer), (reader, target) = os.pipe(), os.pipe()
    os.set_blocking(reader, False)
    os.write(writer, b"all of it")
    os.close(writer)
    copy = _Copy()
    seen: list[object] = []

    def note() -> None:
        seen.append((copy.is_done, os.read(reader, 100)))
        try:
            os.read(reader, 1)
        except BlockingIOError:
            seen.append("open")

    try:
        _pump(source, target, copy, note)
        assert seen == [(True, b"all of it"), "open"]
        assert os.read(reader, 1) == b""
        assert copy.value() == b"all of it"
    finally:
        os.close(reader)


def test_n2_output_ends_whatever_its_note_raises() -> None:
    """No failure of ours leaves a pipe open that the agent reads to its end."""
    (source, writer), (reader, target) = os.pipe(), os.pipe()
    os.close(writer)

    def note() -> None:
        raise RuntimeError

    def pump() -> None:
        with contextlib.suppress(RuntimeError):
            _pump(source, target, _Copy(), note)

    thread = threading.Thread(target=pump)
    thread.start()
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b""
    thread.join()
