"""A Python that is started with the hash secret of another process, and is otherwise unchanged."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from spanreplay.cli.agent import seeded_start
from spanreplay.cli.agent.child import hashing_as
from support import pythons
from support.seeding import WHY, can_seed

pytestmark = pytest.mark.skipif(not can_seed(), reason=WHY)

SECRET: Final = bytes(range(1, 25))
SAY: Final = """
import json, os, sys
try:
    os.waitpid(-1, os.WNOHANG)
    children = True
except ChildProcessError:
    children = False
tracer = [line for line in open("/proc/self/status") if line.startswith("TracerPid")][0].split()[1]
opened = os.listdir("/proc/self/fd")
print(json.dumps([hash("alpha"), hash(b"beta"), children, tracer, sys.argv[1:], opened, os.getpid()]))
"""


def _name(python: Path) -> str:
    return python.parents[1].name


def _start(secret: bytes, *argv: str, **environ: str) -> tuple[subprocess.Popen[str], list[Any]]:
    settings = {"PATH": os.environ["PATH"], **environ}
    with hashing_as(secret, argv, settings) as (words, source):
        process = subprocess.Popen(words, env=settings, pass_fds=source, stdout=subprocess.PIPE, text=True)
    said = process.communicate()[0]
    return process, json.loads(said) if said else []


@pytest.mark.parametrize("python", [Path(sys.executable), *pythons.other_pythons().values()], ids=_name)
def test_n2_hashes_are_those_of_the_secret(python: Path) -> None:
    """Each Python hashes str and bytes by the secret, in the process that was started, and can't notice it."""
    (first, said), (_, again) = (_start(SECRET, str(python), "-c", SAY, "a", "b c") for _ in range(2))
    (_, other), (_, own) = _start(SECRET[::-1], str(python), "-c", SAY), _start(b"", str(python), "-c", SAY, "a", "b c")
    assert said[:2] == again[:2] != other[:2]
    assert said[2:6] == own[2:6] == [False, "0", ["a", "b c"], own[5]]
    assert (first.returncode, said[6]) == (0, first.pid)


def test_n2_a_seed_that_is_set_stays() -> None:
    """If PYTHONHASHSEED is set, it decides."""
    assert (
        _start(SECRET, sys.executable, "-c", SAY, PYTHONHASHSEED="3")[1][0]
        == (_start(b"", sys.executable, "-c", SAY, PYTHONHASHSEED="3")[1][0])
    )


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("/bin/sh", "-c", "exit 7"), 7),
        (("/bin/sh", "-c", "kill -TERM $$"), -15),
        (("/nowhere/python",), 126),
        ((sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"), -2),
    ],
    ids=["no python", "a signal", "no program", "interrupted"],
)
def test_n2_a_command_ends_as_ever(argv: tuple[str, ...], status: int) -> None:
    """The command's exit status or signal is its own, whether it is a Python or not."""
    assert _start(SECRET, *argv)[0].returncode == status


def test_n2_a_python_behind_a_program_is_found() -> None:
    """A program that becomes a Python, as with a shell's `exec`, gets the secret."""
    direct = _start(SECRET, sys.executable, "-c", SAY)[1]
    behind = _start(SECRET, "/bin/sh", "-c", 'exec "$0" "$@"', sys.executable, "-c", SAY)[1]
    assert behind[0] == direct[0]


def test_n2_random_bytes_of_the_kernels_function_are_asked_of_the_kernel(tmp_path: Path) -> None:
    """Newer C libraries first call a kernel function in memory (the vDSO), which makes no system call; it is hidden."""
    base = dict(struct.iter_unpack("<2Q", Path("/proc/self/auxv").read_bytes())).get(33, 0)
    offset = seeded_start.find_function(lambda at, size: ctypes.string_at(base + at, size)) if base else 0
    if not offset:
        pytest.skip("this kernel has no such function")
    ask = tmp_path / "ask.py"
    ask.write_text(
        "import ctypes, struct\n"
        "base = dict(struct.iter_unpack('<2Q', open('/proc/self/auxv', 'rb').read()))[33]\n"
        "kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *[ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint] * 2)\n"
        f"print([kind(base + {offset})(None, 0, 0, ctypes.create_string_buffer(256), 2**64 - 1, 0)])\n",
        encoding="utf-8",
    )
    assert _start(SECRET, sys.executable, str(ask))[1] == [-38]  # ENOSYS
    assert _start(b"", sys.executable, str(ask))[1] == [0]


def test_n2_where_tracing_is_forbidden_the_command_runs_as_ever() -> None:
    """If the kernel forbids tracing, the command runs with its own hashes, and nothing hangs."""
    source, target = os.pipe()
    os.write(target, SECRET)
    os.close(target)
    driver = (
        f"import sys; sys.path.insert(0, {str(Path(seeded_start.__file__).parent)!r}); import seeded_start\n"
        "seeded_start._SEIZE = 0x7FFF  # no request that a kernel knows\n"
        "seeded_start.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", driver, str(source), sys.executable, "-c", SAY, "a"]
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, pass_fds=(source,), capture_output=True, text=True, check=True
    )
    os.close(source)
    said = json.loads(done.stdout)
    assert said[2:5] == [False, "0", ["a"]]
    assert said[0] != _start(SECRET, sys.executable, "-c", SAY)[1][0]
    assert done.stderr == ""
