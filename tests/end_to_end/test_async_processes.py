"""Processes started with asyncio replay without being started: output, order, exit codes, timeouts."""

from __future__ import annotations

from typing import Final

import pytest

from support.replaying import Workplace, assert_same

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


DIALOGUE: Final = """
import anyio, sys
from subprocess import PIPE

CODE = "import sys\\nfor line in sys.stdin: print(line.strip().upper(), flush=True)\\nprint('bye')"

async def main():
    process = await anyio.open_process([sys.executable, "-c", CODE], stdin=PIPE, stdout=PIPE)
    await process.stdin.send(b"may I?\\n")
    answer = await process.stdout.receive()
    print(answer)
    await process.stdin.send(b"yes" if b"MAY" in answer else b"no")
    await process.stdin.aclose()
    with anyio.fail_after(60):
        await process.wait()
    print([piece async for piece in process.stdout], process.returncode)
    print((await anyio.run_process("date +%N; cat", input=b"given")).stdout)

anyio.run(main, backend_options={"use_uvloop": "uvloop" in sys.argv})
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_s50_a_dialogue_through_anyio_replays_without_its_program(loop: str, workplace: Workplace) -> None:
    """Each line of both sides is as recorded, no program starts, and a changed line diverges."""
    agent = workplace.write("agent.py", DIALOGUE)
    recorded = workplace.record(agent, loop)
    recording = next(each for each in workplace.recordings() if each.calls[0].name.startswith("subprocess."))
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert [call.name.partition(".")[0] for call in recording.calls] == ["subprocess"] * 2
    assert_same(workplace.replay(agent, loop, source=recording.run_id), recorded.stdout)
    workplace.write("agent.py", DIALOGUE.replace('b"yes"', 'b"gladly"'))
    changed = workplace.replay(agent, loop, source=recording.run_id)
    assert changed.causes()[0] == ("changed_call", recording.calls[0].kind + ":" + recording.calls[0].name)
    assert "may I?\\ngladly" in changed.stderr


def test_s50_a_start_in_a_task_of_its_own_replays(workplace: Workplace) -> None:
    """The coroutine of the start itself may be a task, as autogen makes it."""
    source = (
        "import asyncio\n"
        "async def main():\n"
        "    start = asyncio.create_task(asyncio.create_subprocess_exec('date', '+%N', stdout=-1))\n"
        "    print(await (await start).communicate())\n"
        "asyncio.run(main())\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    assert_same(workplace.replay(agent), recorded.stdout)


OWN_PROTOCOL: Final = """
import asyncio, sys

class Own(asyncio.SubprocessProtocol):
    def __init__(self):
        self.done = asyncio.get_running_loop().create_future()
    def connection_made(self, transport):
        transport.get_pipe_transport(0).write(b"at once ")
    def pipe_data_received(self, fd, data):
        print(fd, data)
    def process_exited(self):
        self.done.set_result(None)

async def main():
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_shell(Own, "cat; date +%N; exec sleep 60")
    pipe = transport.get_pipe_transport(0)
    pipe.writelines([b"and ", b"later"])
    pipe.write_eof()
    await asyncio.sleep(0.5)
    transport.terminate()
    await protocol.done
    print(transport.get_pid(), transport.get_returncode())
    transport.close()

asyncio.run(main())
"""


def test_s50_a_protocol_of_the_agents_own_replays(workplace: Workplace) -> None:
    """Whatever hears of a program: its input, its signals and its events are as recorded, or diverge."""
    agent = workplace.write("agent.py", OWN_PROTOCOL)
    recorded = workplace.record(agent)
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert_same(workplace.replay(agent), recorded.stdout)
    for before, after, name in (("at once", "now", "subprocess.sh"), ("later", "now", "subprocess.sh"),
                                ("terminate()", "kill()", "asyncio.subprocess.send_signal")):  # fmt: skip
        workplace.write("agent.py", OWN_PROTOCOL.replace(before, after))
        assert workplace.replay(agent, source=recording.run_id).causes() == [("changed_call", f"tool:{name}")]
