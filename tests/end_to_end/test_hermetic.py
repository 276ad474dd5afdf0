"""A replay denies and names program starts, file writes and, with --strict-env, unrecorded reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.replaying import Workplace

CALL = """
import asyncio, os, subprocess, sys, time
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

print(ask("hello"))
"""
EFFECTS = {
    # way → (what the agent does, boundary of the divergence)
    "system": ("import posix; posix.system('touch done')", "process:start"),
    "posix_spawn": (
        "os.waitpid(os.posix_spawn('/usr/bin/touch', ['touch', 'done'], os.environ), 0)",
        "process:start",
    ),
    "libc": ("import ctypes; ctypes.CDLL(None).system(b'touch done')", "native:ctypes"),
    "exec": ("os.execvp('touch', ['touch', 'done'])", "process:start"),
    "forked_exec": ("pid = os.fork()\nif not pid: os.execvp('touch', ['touch', 'done'])\nos.waitpid(pid, 0)", ""),
    "file_of_c": ("import io; io.FileIO('done', 'w').close()", "file:write"),
    "posix_open": ("import posix; posix.close(posix.open('done', os.O_WRONLY | os.O_CREAT))", "file:write"),
    "posix_remove": ("import posix; posix.remove('kept')", "file:write"),
    "posix_rename": ("import posix; posix.rename('kept', 'done')", "file:write"),
    "posix_mkdir": ("import posix; posix.mkdir('done')", "file:write"),
}
LIBRARY = """
import asyncio, ctypes, os, subprocess, sys

libc = ctypes.CDLL(None)
address = ctypes.cast(libc.system, ctypes.c_void_p).value

def compute(text):
    return eval(text)

def fork_exec(module):
    pipe = os.pipe()
    as_is = [-1] * 6
    own = [False, False, *([-1] if sys.version_info >= (3, 11) else []), None, None, None, -1, None]
    vfork = [False] if sys.version_info >= (3, 11) else []
    command = [b"/usr/bin/touch", b"done"]
    pid = module.fork_exec(command, command[:1], True, (pipe[1],), None, None, *as_is, *pipe, *own, *vfork)
    os.waitpid(pid, 0)

def run(command):
    return subprocess.run(command, check=True)

async def run_async(*command):
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()
"""


@pytest.fixture
def site(workplace: Workplace) -> str:
    """An installed library that starts programs for its callers."""
    folder = workplace.path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "library.py").write_text(LIBRARY, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("way", EFFECTS)
def test_n14_effects_past_the_seams_are_denied_and_named(way: str, workplace: Workplace, site: str) -> None:
    """By whatever route a program or file is reached, a replay stops the effect before it happens and says where."""
    source, boundary = EFFECTS[way]
    kept, done = workplace.path / "kept", workplace.path / "done"
    kept.write_text("kept", encoding="utf-8")
    agent = workplace.write("agent.py", CALL + source + "\n")
    workplace.record(agent, PYTHONPATH=site)
    assert done.exists() or not kept.exists()
    if done.is_dir():
        done.rmdir()
    else:
        done.unlink(missing_ok=True)
    kept.write_text("kept", encoding="utf-8")
    replayed = workplace.replay(agent, PYTHONPATH=site)
    assert not done.exists()
    assert kept.read_text() == "kept"
    assert replayed.verdict["verdict"] != "identical"
    if boundary:
        assert replayed.causes()[0] == ("effect_blocked", boundary), replayed.stderr
        first = replayed.verdict["divergences"][0]
        line = next(n for n, text in enumerate(agent.read_text().splitlines(), 1) if text == source.splitlines()[0])
        assert first["code"].startswith(f"agent.py:{line} ")


NATIVE = {
    # way → (what the agent does, boundary of the divergence)
    "behind_another": ("ctypes.CDLL('libm.so.6').system(b'touch done')", "native:ctypes"),
    "of_python": ("ctypes.pythonapi.system(b'touch done')", "native:ctypes"),
    "by_handle": ("_ctypes.dlsym(_ctypes.dlopen('libm.so.6', 1), 'system')", "native:ctypes"),
    "by_address": ("_ctypes.call_function(library.address, (b'touch done',))", "native:ctypes"),
    "of_a_library": ("library.libc.system(b'touch done')", "native:ctypes"),
    "loaded_without_a_file": ("library.compute('ctypes.CDLL(None)')", "native:ctypes"),
    "called_without_a_file": ("library.compute('libc.system(b\"touch done\")')", "native:ctypes"),
    "fork_exec": ("library.fork_exec(_posixsubprocess)", "process:start"),
    "fork_exec_without_a_file": ("library.compute('fork_exec(__import__(\"_posixsubprocess\"))')", "process:start"),
    "multiprocessing": ("util.spawnv_passfds(b'/usr/bin/touch', [b'touch', b'done'], ())", "process:start"),
    "without_a_file": ('library.compute(\'__import__("posix").system("touch done")\')', "process:start"),
}


def test_r8_native_code_is_denied_whoever_reaches_for_it(workplace: Workplace, site: str) -> None:
    """Native code is denied through any handle of the C library, and so are programs without an audit event."""
    ways = [f"try: {source}\nexcept BaseException as exc: print({way!r}, exc)\n" for way, (source, _) in NATIVE.items()]
    imports = "import ctypes, _ctypes, _posixsubprocess, library\nimport multiprocessing.util as util\n"
    agent = workplace.write("agent.py", CALL + imports + "".join(ways) + "print(ctypes.pythonapi.Py_IsInitialized())\n")
    recorded = workplace.record(agent, PYTHONPATH=site)
    done = workplace.path / "done"
    assert done.exists()
    assert recorded.stdout.splitlines() == ["answer to hello", "1"]
    done.unlink()
    replayed = workplace.replay(agent, PYTHONPATH=site)
    assert not done.exists(), replayed.stdout
    denied = dict(line.split(" ", 1) for line in replayed.stdout.splitlines()[1:-1])
    assert denied.keys() == NATIVE.keys(), replayed.stdout
    assert all("was denied: no boundary covers it" in said for said in denied.values())
    assert replayed.causes()[0] == ("effect_blocked", "native:ctypes")
    assert {each["boundary"] for each in replayed.verdict["divergences"]} >= {"native:ctypes", "process:start"}
    assert replayed.stdout.endswith("\n1\n")


def test_n14_the_same_effects_happen_inside_of_a_live_call(workplace: Workplace, site: str) -> None:
    """A boundary that the plan lets go live may start programs and write files by any route; a stubbed one may not."""
    source = CALL.replace(
        "return f", "import library; library.run(['touch', 'done']); open('more', 'w').close(); return f"
    )
    agent = workplace.write("agent.py", source)
    workplace.record(agent, PYTHONPATH=site)
    names = [workplace.path / "done", workplace.path / "more"]
    for name in names:
        name.unlink()
    assert workplace.replay(agent, PYTHONPATH=site).status == 0
    assert [n.exists() for n in names] == [False, False]
    assert workplace.replay(agent, options=["--live", "tool:ask"], PYTHONPATH=site).status == 0
    assert [n.exists() for n in names] == [True, True]


HARMLESS = (
    CALL
    + """
import platform, tempfile, uuid, logging, ctypes.util
print(bool(platform.platform()), platform.architecture()[0], ctypes.util.find_library("c"))
open(os.devnull, "w").write("x")
with tempfile.TemporaryFile() as file: file.write(b"x")
import ctypes
print(type(ctypes.pythonapi).__name__)
"""
)


def test_what_only_looks_at_the_machine_is_let_through(workplace: Workplace) -> None:
    """The standard library may start programs to identify the machine; devices may be written."""
    agent = workplace.write("agent.py", HARMLESS)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr


READS = {
    "clock": "time.clock_gettime(0)",
    "random": "os.getrandom(8)",
    "environment": "os.environb[b'REGION']",
}


@pytest.mark.parametrize("kind", READS)
def test_s59_strict_env_denies_what_is_not_recorded(
    kind: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Unrecorded reads continue in a replay, which is then incomplete; with --strict-env they are denied."""
    data = tmp_path_factory.mktemp("data") / "orders.csv"
    data.write_text("1\n", encoding="utf-8")
    agent = workplace.write("agent.py", CALL + READS[kind] + "\nprint('went on')\n")
    workplace.record(agent, str(data), REGION="eu")
    assert workplace.replay(agent, str(data), REGION="eu").verdict["verdict"] == "incomplete"
    strict = workplace.replay(agent, str(data), REGION="eu", options=["--strict-env"])
    assert strict.status == 3
    first = strict.verdict["divergences"][0]
    line = agent.read_text().splitlines().index(READS[kind]) + 1
    assert (first["kind"], first["code"]) == ("effect_blocked", f"agent.py:{line} <module>")
    assert first["boundary"].startswith(f"{kind}:")
    assert "went on" not in strict.stdout


def test_s59_strict_env_denies_a_variable_with_another_value(workplace: Workplace) -> None:
    """A changed variable is compared anyway; with --strict-env the replay stops where it is read."""
    agent = workplace.write(
        "agent.py", CALL + "if os.environ['REGION'] == 'us': print('dollars')\nprint(time.time())\n"
    )
    recorded = workplace.record(agent, REGION="eu")
    same = workplace.replay(agent, REGION="eu", options=["--strict-env"])
    assert (same.status, same.stdout) == (0, recorded.stdout), same.stderr
    other = workplace.replay(agent, REGION="us", options=["--strict-env"])
    assert other.status == 3
    assert other.causes()[0] == ("effect_blocked", "environment:os.environ")
    assert "REGION" in other.verdict["divergences"][0]["message"]
    assert "dollars" not in other.stdout


def test_replay_leaves_the_tree_without_bytecode_rules(workplace: Workplace) -> None:
    """Bytecode that the interpreter keeps for itself is neither redirected nor denied by Python's own guard."""
    workplace.write("helper.py", "VALUE = 1\n")
    agent = workplace.write("agent.py", CALL + "import helper\nprint(helper.VALUE)\n")
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent, PYTHONDONTWRITEBYTECODE="", SPANREPLAY_SANDBOX="python")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert Path(workplace.path / "__pycache__").is_dir()
