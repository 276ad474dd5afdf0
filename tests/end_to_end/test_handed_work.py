"""Work that the agent hands directly to a thread, without a function of its own, counts as the agent's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.replaying import Workplace

FILES = """
import asyncio, os, pathlib, sys
from concurrent.futures import ThreadPoolExecutor
import aiofiles, aiofiles.os, aiofiles.tempfile, anyio
root = pathlib.Path(sys.argv[1])

async def main():
    async with aiofiles.open(root / "in.txt") as file:
        print(await file.read())
    async with aiofiles.open(root / "in.txt", "rb") as file:
        print(await file.read(2), await file.read())
    print(await asyncio.to_thread((root / "in.txt").read_text))
    print(sorted(await asyncio.to_thread(os.listdir, root)))
    print(await aiofiles.os.path.exists(root / "in.txt"), (await aiofiles.os.stat(root / "in.txt")).st_mtime_ns)
    print(await anyio.Path(root / "in.txt").read_text(), await anyio.Path(root / "nothing").exists())
    async with await anyio.open_file(root / "in.txt") as file:
        print(await file.read())
    print([path.name async for path in anyio.Path(root).iterdir()])
    async with aiofiles.open(root / "out.txt", "w") as file:
        await file.write("out")
    async with aiofiles.open(root / "out.txt") as file:
        print(await file.read())
    async with aiofiles.tempfile.TemporaryDirectory() as folder:
        print(os.listdir(folder))

asyncio.run(main())
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(pathlib.Path.read_text, [root / "in.txt"] * 2)))
    print(list(pool.map(os.path.getsize, [root / "in.txt"])))
"""

TRIO = """
import os, pathlib, sys
import trio
root = pathlib.Path(sys.argv[1])

async def main():
    print(await trio.Path(root / "in.txt").read_text(), await trio.Path(root / "nothing").exists())
    print(await trio.to_thread.run_sync(os.listdir, root))
    async with await trio.open_file(root / "in.txt") as file:
        print(await file.read())

trio.run(main)
"""


@pytest.mark.parametrize("source", [FILES, TRIO], ids=["asyncio", "trio"])
def test_s50_files_that_threads_read_for_the_agent_replay(
    source: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """aiofiles, anyio, trio, `asyncio.to_thread` and pools call `open` in a thread that has no agent frame."""
    data = tmp_path_factory.mktemp("data")
    (data / "in.txt").write_text("input\n", encoding="utf-8")
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, str(data))
    assert recorded.stdout.count("input") >= 2
    shutil.rmtree(data)
    replayed = workplace.replay(agent, str(data))
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


REST = """
import asyncio, datetime, subprocess, sys, threading, time, uuid

async def main():
    print(await asyncio.to_thread(input, "ok? "))
    done = await asyncio.to_thread(subprocess.run, ["date", "+%N"], capture_output=True, text=True)
    loop = asyncio.get_running_loop()
    print(done.stdout, await loop.run_in_executor(None, subprocess.check_output, ["date", "+%N"]))
    print(await asyncio.to_thread(time.time), await asyncio.to_thread(uuid.uuid4))
    print(await asyncio.to_thread(datetime.datetime.now))

asyncio.run(main())
thread = threading.Thread(target=subprocess.call, args=(["touch", sys.argv[1]],))
thread.start()
thread.join()
"""


def test_s50_what_threads_ask_the_outside_for_the_agent_replays(workplace: Workplace, tmp_path: Path) -> None:
    """Human input, programs, the clock and random sources are read in a thread by functions of other packages."""
    made = tmp_path / "made"
    agent = workplace.write("agent.py", REST)
    recorded = subprocess.run(
        [str(workplace.python.parent / "opentelemetry-instrument"), str(workplace.python), str(agent), str(made)],
        cwd=workplace.path,
        env=workplace.environ,
        input="yes\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert recorded.stdout.startswith("ok? yes\n")
    assert made.exists()
    made.unlink()
    replayed = workplace.replay(agent, str(made))
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert not made.exists()


LIBRARY = """
import concurrent.futures
import pathlib

def look_up(path):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(pathlib.Path(path).read_text).result()
"""


def test_s50_what_plumbing_has_a_thread_do_is_its_own(
    workplace: Workplace, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The submitter decides: files that a library reads in a thread are recorded, those of plumbing are not."""
    packages = tmp_path / "site-packages" / "somelib"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text(LIBRARY, encoding="utf-8")
    data = tmp_path_factory.mktemp("data") / "own.txt"
    data.write_text("own", encoding="utf-8")
    agent = workplace.write(
        "agent.py",
        "import sys, spanreplay\nsys.path.insert(0, sys.argv[2])\nimport somelib\n"
        "print(spanreplay.boundary('tool', name='ask')(len)('four'), somelib.look_up(sys.argv[1]))\n",
    )
    for plumbing, names in (("", ["ask", "open"]), ("somelib", ["ask"])):
        workplace.record(agent, str(data), str(packages.parent), SPANREPLAY_PLUMBING=plumbing)
        assert [c.name for c in workplace.recordings()[-1].calls] == names


RUNNER = """
import asyncio
import threading


def run(main):
    thread = threading.Thread(target=asyncio.run, args=(main,))
    thread.start()
    thread.join()
"""
STAMPS = """
import datetime
import uuid


def make():
    return datetime.datetime.now(datetime.timezone.utc), uuid.uuid4()
"""
RUN_BY_A_LIBRARY = """
import runner
import spanreplay
import stamps

@spanreplay.boundary("tool", name="ask")
async def ask(question):
    return question.upper()

async def main():
    print(await ask("when"), *stamps.make())

runner.run(main())
"""


def test_s50_what_a_library_reads_for_the_agent_in_another_librarys_thread_replays(tmp_path: Path) -> None:
    """A library runs the agent's coroutine in its own thread, and this one asks another library for the time."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "runner.py").write_text(RUNNER, encoding="utf-8")
    (installed / "stamps.py").write_text(STAMPS, encoding="utf-8")
    workplace = Workplace(tmp_path, {"PYTHONPATH": str(installed)})
    agent = workplace.write("agent.py", RUN_BY_A_LIBRARY)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
