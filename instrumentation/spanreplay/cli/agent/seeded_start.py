"""Start Python with the hash secret of another process: `python -I -S seeded_start.py FD COMMAND...`.

The order of a set of strings follows from their hashes. Python draws the secret for these before any Python code runs,
with its first `getrandom` call for SECRET_BYTES bytes. If a recording holds the secret, this script sets it again: it
executes the command in its own process, while a second process waits for that system call (`ptrace`), overwrites its
result, detaches and ends. Linux only. If tracing is not allowed, the command runs with random hashes.

FD is read to its end and gives the secret. Self-contained: imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["SECRET_BYTES", "find_function", "is_possible", "main"]

SECRET_BYTES: Final = 24
"""Size of CPython's `_Py_HashSecret_t`, since 3.4."""
_MACHINE: Final = os.uname().machine if hasattr(os, "uname") else ""
_GETRANDOM: Final = {"x86_64": 318, "aarch64": 278}
"""Machine → number of the system call."""
_NOT_HERE: Final = {
    "x86_64": bytes.fromhex("48c7c0daffffffc3"),  # mov rax, -ENOSYS; ret
    "aarch64": bytes.fromhex("a0048092c0035fd6"),  # mov x0, -ENOSYS; ret
}
_IN_MEMORY: Final = (b"__vdso_getrandom", b"__kernel_getrandom")
"""glibc 2.41 and later call this vDSO function of the kernel first, which makes no system call."""
_NONBLOCK: Final = 1
_CALLS_MAX: Final = 20_000
"""Give up after this many system calls: the command is not a Python, or it draws no secret."""

_SYSCALL, _DETACH, _SEIZE, _LISTEN, _GET_SYSCALL_INFO = 24, 17, 0x4206, 0x4208, 0x420E
_OPTIONS: Final = 0x1 | 0x10  # mark stops at system calls; report execve
_EVENT_EXEC, _EVENT_STOP = 4, 128
_CALL_STOP: Final = 5 | 0x80
_ENTRY, _EXIT = 1, 2
_INFO_BYTES: Final = 88
_SET_PTRACER: Final = 0x59616D61
_WALL: Final = 0x40000000
_AT_SYSINFO_EHDR: Final = 33
_DYNSYM: Final = 11


def is_possible() -> bool:
    """Whether this platform is supported."""
    return sys.platform == "linux" and _MACHINE in _GETRANDOM and sys.byteorder == "little"


def main(words: list[str]) -> None:
    """Execute the command; does not return."""
    with os.fdopen(int(words[0]), "rb") as source:
        secret = source.read()
    command = words[1:]
    with suppress(OSError):  # no second process could be started
        _be_traced(secret)
    try:
        os.execv(command[0], command)  # noqa: S606 -- the user's own command
    except OSError as exc:
        sys.stderr.write(f"error: cannot run {command[0]!r}: {exc.strerror or exc}\n")
        os._exit(126)


def _be_traced(secret: bytes) -> None:
    """Start the tracing process and wait until it is ready; as a grandchild, so that the command can't wait for it."""
    tracee = os.getpid()
    is_allowed, allow = os.pipe()
    answer, say = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            os.close(allow)
            os.close(answer)
            _trace_and_end(tracee, secret, is_allowed, say)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(say)
    os.close(is_allowed)
    told = os.read(answer, 4)
    if len(told) == 4:
        ctypes.CDLL(None).prctl(_SET_PTRACER, struct.unpack("i", told)[0], 0, 0, 0)  # if only ancestors may trace
        os.write(allow, b".")
        os.read(answer, 1)  # it is ready, or it has ended
    os.close(allow)
    os.close(answer)


def _trace_and_end(tracee: int, secret: bytes, is_allowed: int, say: int) -> None:
    try:
        os.write(say, struct.pack("i", os.getpid()))
        os.read(is_allowed, 1)
        _Tracer(tracee).run(secret, say)
    except BaseException:  # noqa: BLE001, S110 -- the kernel lets the command go on when this process ends
        pass
    finally:
        os._exit(0)


class _Tracer:
    """Follows the system calls of a process until its hash secret is drawn."""

    def __init__(self, tracee: int) -> None:
        self._tracee = tracee
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long
        self._info = ctypes.create_string_buffer(_INFO_BYTES)
        self._number = _GETRANDOM[_MACHINE]
        self._at = 0
        """Address of the secret during the system call that draws it, else 0."""

    def run(self, secret: bytes, say: int) -> None:
        """Follow a process from its execve on. Raises: OSError if tracing is not allowed."""
        self._ask(_SEIZE, 0, _OPTIONS)
        os.write(say, b".")
        os.close(say)
        has_started = False
        for _ in range(_CALLS_MAX):
            _, status = os.waitpid(self._tracee, _WALL)
            if not os.WIFSTOPPED(status):
                return
            signal, event = os.WSTOPSIG(status), status >> 16
            request = _SYSCALL
            if event == _EVENT_EXEC:
                has_started = True
                self._mask_function()
            elif event == _EVENT_STOP:
                request = _LISTEN
            elif signal == _CALL_STOP and has_started and self._has_drawn():
                self._write(self._at, secret)
                break
            is_signal = not event and signal != _CALL_STOP
            self._ask(request, 0, signal if is_signal else 0)
        self._ask(_DETACH, 0, 0)

    def _ask(self, request: int, address: int, data: int) -> None:
        if self._ptrace(request, self._tracee, address, data) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def _has_drawn(self) -> bool:
        """Whether the system call that ends here drew the secret; for one that begins here, note its arguments."""
        self._ask(_GET_SYSCALL_INFO, _INFO_BYTES, ctypes.addressof(self._info))
        kind = self._info.raw[0]
        if kind == _ENTRY:
            number, at, size, flags = struct.unpack_from("<4Q", self._info.raw, 24)
            is_secret = number == self._number and size == SECRET_BYTES and flags == _NONBLOCK
            self._at = at if is_secret else 0
            return False
        drawn = struct.unpack_from("<q", self._info.raw, 24)[0]
        return kind == _EXIT and self._at != 0 and drawn == SECRET_BYTES

    def _read(self, at: int, size: int) -> bytes:
        with open(f"/proc/{self._tracee}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 -- light
            memory.seek(at)
            return memory.read(size)

    def _write(self, at: int, content: bytes) -> None:
        with open(f"/proc/{self._tracee}/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 -- light
            memory.seek(at)
            memory.write(content)

    def _mask_function(self) -> None:
        """Disable the kernel's vDSO function for random bytes, so that the C library makes a system call."""
        with open(f"/proc/{self._tracee}/auxv", "rb") as source:  # noqa: PTH123 -- light
            words = source.read()
        found = dict(struct.iter_unpack("<2Q", words[: len(words) // 16 * 16]))
        base = found.get(_AT_SYSINFO_EHDR, 0)
        offset = find_function(lambda at, size: self._read(base + at, size)) if base else 0
        if offset:
            self._write(base + offset, _NOT_HERE[_MACHINE])


def find_function(read: Callable[[int, int], bytes]) -> int:
    """The offset of one of `_IN_MEMORY` in a 64-bit ELF image; 0 if there is none."""
    header = read(0, 64)
    table, size, count = (struct.unpack_from(code, header, at)[0] for code, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    sections = [struct.unpack_from("<2I4Q2I2Q", read(table + size * each, size)) for each in range(count)]
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        names, symbols = sections[section[6]], read(section[4], section[5])
        texts = read(names[4], names[5])
        for name, _, _, _, value, _ in struct.iter_unpack("<I2BH2Q", symbols):
            if texts[name : texts.find(b"\0", name)] in _IN_MEMORY:
                return int(value)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
