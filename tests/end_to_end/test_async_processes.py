"""Processes started with asyncio replay without being started: output, order, exit codes, timeouts."""

from __future__ import annotations

from support.replaying import Replayed, Workplace


def assert_same(replayed: Replayed, stdout: str) -> None:
    """The replay printed the same bytes and says so."""
    assert replayed.stdout == stdout, replayed.stderr
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.status == 0


PROCESSES = """
import asyncio, asyncio.subprocess as sub

async def main():
    process = await asyncio.create_subprocess_exec("touch", "touched")
    print(await process.wait(), process.returncode)
    shell = await asyncio.create_subprocess_shell(
        "cat; echo err >&2; date +%N; exit 3", stdin=sub.PIPE, stdout=sub.PIPE, stderr=sub.PIPE
    )
    print(await shell.communicate(b"to stdin "), shell.returncode, shell.pid)
    counting = await asyncio.create_subprocess_exec("sh", "-c", "for n in 1 2 3; do echo $n $$; done", stdout=sub.PIPE)
    async for line in counting.stdout:
        print(line)
    print(await counting.wait())
    try:
        await asyncio.create_subprocess_exec("no-such-program")
    except FileNotFoundError as error:
        print("FileNotFoundError", error.filename)
    stuck = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await asyncio.wait_for(stuck.wait(), 0.3)
    except asyncio.TimeoutError:
        print("TimeoutError", stuck.returncode)
    stuck.kill()
    print(await stuck.wait())

    async def race(seconds):
        done = await asyncio.create_subprocess_shell(f"sleep {seconds}; echo {seconds} $$", stdout=sub.PIPE)
        return await done.communicate()

    for first in asyncio.as_completed([race(0.4), race(0.2), race(0.0)]):
        print(await first)

asyncio.run(main())
"""


def test_s50_asyncio_processes_replay_without_starting(workplace: Workplace) -> None:
    """Piped output, exit codes, errors, timeouts and completion order are as recorded; no process is started."""
    agent = workplace.write("agent.py", PROCESSES)
    recorded = workplace.record(agent)
    assert (workplace.path / "touched").exists()
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {(c.kind, c.effect) for c in recording.calls} == {("tool", "irreversible")}
    (workplace.path / "touched").unlink()
    replayed = workplace.replay(agent)
    assert_same(replayed, recorded.stdout)
    assert not (workplace.path / "touched").exists()


def test_s50_another_asyncio_command_is_never_started(workplace: Workplace) -> None:
    """A command that was not recorded is a divergence, and does not run."""
    source = (
        "import asyncio, sys\n"
        "async def main():\n"
        "    process = await asyncio.create_subprocess_exec('touch', sys.argv[1])\n"
        "    await process.wait()\n"
        "asyncio.run(main())\n"
    )
    agent = workplace.write("agent.py", source)
    workplace.record(agent, "one")
    replayed = workplace.replay(agent, "two")
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "tool:subprocess.touch")]
    assert not (workplace.path / "two").exists()
