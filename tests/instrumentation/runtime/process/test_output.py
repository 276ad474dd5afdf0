"""Standard output is captured byte for byte, however it is written, and otherwise unchanged."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model import config
from spanreplay.redact import Redactor
from spanreplay.runtime.process.stdout import OutputCapture
from support.replaying import Workplace

CALL = """
import io, os, sys
import spanreplay

@spanreplay.boundary("tool", name="f", effect="read")
def f():
    return 1

f()
"""
WAYS = {
    "print": "print('größer', 1, sep='-')",
    "no_newline": "sys.stdout.write('no end of line')",
    "buffer": "sys.stdout.buffer.write(b'\\xff\\x00raw')",
    "writelines": "sys.stdout.writelines(['a\\n', 'b\\n']); sys.stdout.buffer.writelines([b'c', b'd'])",
    "mixed": "print('text'); sys.stdout.flush(); sys.stdout.buffer.write(b'bytes'); sys.stdout.flush(); print('text')",
    "large": "print('x' * 300_000)",
    "saved_method": "write = sys.stdout.write\\nwrite('one'); write('two')".replace("\\n", "\n"),
    "replaced_stream": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='latin-1'); print('größer')",
    "pending_below": "print('first', end=''); sys.stdout = io.StringIO(); print('nowhere')",
    "crlf": "sys.stdout.reconfigure(newline='\\r\\n'); print('line')",
    "empty": "pass",
}


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A directory to record in."""
    return Workplace(tmp_path)


def _stated(workplace: Workplace) -> dict[str, Any]:
    stated: dict[str, Any] = workplace.recording().root.manifest["stdout"]
    return stated


def _run(workplace: Workplace, *arguments: str, **environ: str) -> bytes:
    """Record with the output redirected to a file, as in a shell; return the file's bytes."""
    import subprocess

    path = workplace.path / "out"
    with path.open("wb") as stream:
        subprocess.run(
            [str(workplace.python.parent / "opentelemetry-instrument"), str(workplace.python), *arguments],
            cwd=workplace.path,
            env={**workplace.environ, **environ},
            stdout=stream,
            check=True,
            timeout=120,
        )
    return path.read_bytes()


EVERY_WAY = "\n".join(f"# {name}\n{source}" for name, source in WAYS.items() if not name.startswith(("repl", "pend")))


@pytest.mark.parametrize(
    ("source", "flags"),
    [(EVERY_WAY, ()), (EVERY_WAY, ("-u",)), (WAYS["replaced_stream"], ()), (WAYS["pending_below"], ())],
    ids=["buffered", "unbuffered", "replaced_stream", "pending_below"],
)
def test_s20_every_way_to_write_is_captured(source: str, flags: tuple[str, ...], workplace: Workplace) -> None:
    """The manifest states exactly the bytes that were written, with and without buffering."""
    workplace.write("agent.py", CALL + source)
    written = _run(workplace, *flags, "agent.py")
    stated = _stated(workplace)
    assert stated["bytes"] == len(written) > 0
    text = written.decode("utf-8", "backslashreplace")
    assert stated["text"] == text
    assert stated["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_standard_output_stays_the_same_object(workplace: Workplace) -> None:
    """`sys.stdout` is the interpreter's own object, with its encoding, descriptor and class."""
    check = (
        "assert sys.stdout is sys.__stdout__\n"
        "assert type(sys.stdout) is io.TextIOWrapper\n"
        "assert sys.stdout.fileno() == 1\n"
        "assert sys.stdout.encoding == 'ascii' and sys.stdout.errors == 'replace'\n"
        "print('größer')\n"
    )
    workplace.write("agent.py", CALL + check)
    assert _run(workplace, "agent.py", PYTHONIOENCODING="ascii:replace") == b"gr??er\n"
    assert _stated(workplace)["text"] == "gr??er\n"


def test_process_without_standard_output_is_recorded(workplace: Workplace) -> None:
    """A closed standard output does not lose the run."""
    import subprocess

    workplace.write("agent.py", CALL)
    command = f'exec "{workplace.python.parent}/opentelemetry-instrument" "{workplace.python}" agent.py >&-'
    done = subprocess.run(["sh", "-c", command], cwd=workplace.path, env=workplace.environ, check=False, timeout=600)
    assert done.returncode == 0
    assert len(workplace.recording().calls) == 1


class Raw:
    """A stream with short writes and the attributes of a file."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.written = b""

    def write(self, chunk: bytes | memoryview[int]) -> int:
        """Write as much as fits."""
        taken = bytes(chunk)[: self.limit]
        self.written += taken
        return len(taken)

    def flush(self) -> None:
        """Nothing to do."""


class Text:
    """A text stream with a buffer."""

    def __init__(self, raw: Raw) -> None:
        self.buffer = raw

    def flush(self) -> None:
        """Nothing to do."""


@pytest.fixture
def redactor() -> Any:
    """A redactor for one run."""
    return Redactor(b"k" * 32, "b").run()


def _capture(monkeypatch: pytest.MonkeyPatch, raw: Raw) -> OutputCapture:
    monkeypatch.setattr(sys, "__stdout__", Text(raw))
    capture = OutputCapture()
    assert capture.install()
    return capture


def test_short_writes_are_counted_as_they_were(monkeypatch: pytest.MonkeyPatch, redactor: Any) -> None:
    """Bytes that a raw stream did not accept were not written, and are not captured."""
    raw = Raw(limit=3)
    capture = _capture(monkeypatch, raw)
    assert raw.write(b"abcdef") == 3
    assert raw.write(memoryview(b"gh")) == 2
    found = capture.summarize(redactor)
    assert (found["bytes"], found["text"]) == (5, "abcgh")
    capture.uninstall()
    assert "write" not in vars(raw)


def test_output_above_the_limit_is_hashed_whole(monkeypatch: pytest.MonkeyPatch, redactor: Any) -> None:
    """Above the limit the text is cut; the hash still distinguishes two long outputs."""
    monkeypatch.setattr(config, "STDOUT_BYTES_MAX", 10)
    found = []
    for last in (b"a", b"b"):
        raw = Raw()
        capture = _capture(monkeypatch, raw)
        for piece in (b"0123456789", b"more", last):
            raw.write(piece)
        found.append(capture.summarize(redactor))
    assert [f["text"] for f in found] == ["0123456789"] * 2
    assert [f["bytes"] for f in found] == [15, 15]
    assert found[0]["sha256"] != found[1]["sha256"]


def test_r1_secrets_that_were_printed_are_not_kept(monkeypatch: pytest.MonkeyPatch, redactor: Any) -> None:
    """The text in the manifest is redacted, and its hash is that of the redacted text."""
    raw = Raw()
    capture = _capture(monkeypatch, raw)
    raw.write(b"key sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7\n")
    found = capture.summarize(redactor)
    assert "Zx9Yw8" not in found["text"]
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()
    assert b"Zx9Yw8" in raw.written


def test_stream_without_a_buffer_is_left_alone(monkeypatch: pytest.MonkeyPatch, redactor: Any) -> None:
    """If standard output was replaced before us, nothing can be captured, and the capture says so."""
    for stream in (None, object()):
        monkeypatch.setattr(sys, "__stdout__", stream)
        capture = OutputCapture()
        assert capture.install() is False
        assert capture.summarize(redactor) == {}
        capture.uninstall()
