"""Jupyter notebooks: each cell is a separate run, and replays without a kernel client and the provider."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from support.notebooks import ASKING, EXECUTE, KERNEL, a_kernel, cells_of, make_place, read_outputs, write_notebook
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical, replay_suite
from support.units import await_true
from support.workers import input_of, output_of, units_of

ALONE: Final = f"""{ASKING}
print("first", time.time())
ask("question-1") + str(uuid.uuid4())"""
CELLS: Final = (
    ALONE,
    'reply = ask("question-2")\nprint(reply, time.time())\nreply.upper()',
    'both = await asyncio.gather(think("question-3"), think("question-3 too"))\nboth',
    "%%time\n_ = ask('question-4')",
    '!echo "$(date) of a shell"\nlines = !date +%N\nlines',
    "from IPython.display import HTML\ndisplay(HTML('<b>bold</b>'))\n{1: 2}",
    'ask("question-6")\nraise KeyError("of the cell")',
)


def test_p3_p4_each_cell_of_an_executed_notebook_is_a_run_and_replays(provider: Provider, tmp_path: Path) -> None:
    """Values, text, `await`, magics, a shell and an error: one cell replays alone, all after the earlier ones."""
    place = make_place(tmp_path, provider)
    write_notebook(place, "report.ipynb", CELLS)
    done = place.run("record", "--", "jupyter", *EXECUTE, "--allow-errors", "report.ipynb")
    assert done.returncode == 0, done.stderr
    provider.stop()
    units = cells_of(place)
    assert [input_of(unit)["source"] for unit in units] == list(CELLS)
    assert {unit.root.app for unit in units} == {"report.ipynb"}
    assert len({unit.root.session_id for unit in units}) == 1
    for unit, shown in zip(units, read_outputs(place), strict=True):
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert output_of(unit)["outputs"] == _joined(shown)
    assert [sum(call.kind == "llm" for call in unit.calls) for unit in units] == [1, 1, 2, 1, 0, 0, 1]
    assert [unit.root.outcome for unit in units] == ["ok"] * 6 + ["error"]
    assert output_of(units[6])["error"] == {"ename": "KeyError", "evalue": "'of the cell'"}
    alone = place.replay(*KERNEL, source=units[0].run_id)
    assert alone.status == 0, alone.stderr
    warm = place.replay(*KERNEL, source=units[-1].run_id, options=("--warm", "all"))
    assert warm.status == 0, warm.stderr
    assert all(not each["why"] for each in warm.verdict["warm_up"]["units"])
    insist_identical(place, *KERNEL, units=units[1:], options=("--warm", "all"))


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs of a notebook cell as its run stores them: texts joined, without errors."""
    found: list[dict[str, Any]] = []
    for each in outputs:
        shown: dict[str, Any] = {name: each[name] for name in ("output_type", "name", "text", "data") if name in each}
        if "text" in shown:
            shown["text"] = "".join(shown["text"])
        if "data" in shown:
            shown["data"] = {kind: "".join(lines) for kind, lines in shown["data"].items()}
        if found and "name" in shown and shown["name"] == found[-1].get("name"):  # a text may arrive in pieces
            found[-1]["text"] += shown["text"]
        elif each["output_type"] != "error":
            found.append(shown)
    return found


def test_p4_a_cell_needs_what_earlier_cells_left_and_its_verdict_names_the_way(
    provider: Provider, tmp_path: Path
) -> None:
    """Alone it diverges and names the missing variable; after the earlier cells it is identical, by any command."""
    place = make_place(tmp_path, provider)
    write_notebook(place, "report.ipynb", (ASKING, 'ask("question-1")'))
    command = ("jupyter", *EXECUTE, "report.ipynb")
    assert place.run("record", "--", *command).returncode == 0
    provider.stop()
    unit = cells_of(place)[1]
    alone = place.replay(*KERNEL, source=unit.run_id, options=("--warm", "0"))
    assert alone.status == 3, alone.stderr
    assert "name 'ask' is not defined without it: 1 unit of its process came before" in alone.stderr
    assert f"--warm all -- {place.python} -m ipykernel_launcher" in alone.stderr
    for words in (command, ()):
        asked = ("--", *words) if words else ()
        done = place.run("replay", unit.run_id, "--warm", "all", *asked)
        assert done.returncode == 0, done.stderr
        assert "identical after warming up with 1 earlier unit" in done.stderr


def test_p4_a_module_that_a_notebook_imports_has_changed_its_prompt(provider: Provider, tmp_path: Path) -> None:
    """The changed prompt is the one cause."""
    place = make_place(tmp_path, provider)
    place.write("shop.py", f'{ASKING}\ndef answer():\n    return ask("sell 1,000")\n')
    write_notebook(place, "report.ipynb", ("import shop", "import shop\nshop.answer()"))
    assert place.run("record", "--", "jupyter", *EXECUTE, "report.ipynb").returncode == 0
    provider.stop()
    unit = cells_of(place)[1]
    assert place.replay(*KERNEL, source=unit.run_id).status == 0
    place.write("shop.py", f'{ASKING}\ndef answer():\n    return ask("sell 2,000")\n')
    changed = place.replay(*KERNEL, source=unit.run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "llm:openai.chat.completions")]
    assert "messages[0].content differs" in changed.stderr


def test_p2_p7_what_a_front_end_does_for_itself_is_no_unit_and_a_kernel_is_as_without_us(
    provider: Provider, tmp_path: Path
) -> None:
    """Silent executions, completions and inspections work and leave no run; nothing of ours is shown."""
    place = make_place(tmp_path, provider)
    with a_kernel(place) as kernel:
        kernel.execute(ASKING, silent=True)
        kernel.execute("import os", store_history=False)
        assert kernel.execute("", user_expressions={})["status"] == "ok"
        completed = kernel.client.complete("os.path.absp", reply=True, timeout=TIMEOUT_S)["content"]
        assert completed["matches"] == ["abspath"]
        assert kernel.client.inspect("ask", reply=True, timeout=TIMEOUT_S)["content"]["found"]
        kernel.shown.clear()
        assert kernel.execute("ask('question-1')")["status"] == "ok"
        assert kernel.execute("%autoawait")["execution_count"] == 2
        assert kernel.execute("1/0")["ename"] == "ZeroDivisionError"
        shown = kernel.shown
    assert [(each["msg_type"], each["content"].get("name")) for each in shown] == [
        *[("execute_input", None), ("execute_result", None)],
        *[("execute_input", None), ("stream", "stdout")],
        *[("execute_input", None), ("error", None)],
    ]
    units = cells_of(place)
    assert [input_of(unit)["source"] for unit in units] == ["ask('question-1')", "%autoawait", "1/0"]
    assert all(unit.completeness().is_complete for unit in units)
    assert {unit.root.app for unit in units} == {"notebook"}


def test_p3_p4_a_question_to_a_human_and_a_password_are_of_their_cell(provider: Provider, tmp_path: Path) -> None:
    """A replay answers both; the password is in no recording."""
    place = make_place(tmp_path, provider)
    source = 'import getpass\nname = input("Who? ")\nprint(name, len(getpass.getpass("And? ")))'
    with a_kernel(place, JPY_SESSION_NAME=str(tmp_path / "own.ipynb"), JUPYTERHUB_USER="ann") as kernel:
        answers = iter(["ann", "horse-battery-7"])

        def answer(asked: Any) -> None:
            kernel.client.input(next(answers))

        assert kernel.execute(source, allow_stdin=True, stdin_hook=answer)["status"] == "ok"
    (unit,) = cells_of(place)
    assert (unit.root.app, unit.root.user_id) == ("own.ipynb", "ann")
    assert output_of(unit)["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "ann 15\n"}]
    spool = b"".join(file.read_bytes() for file in (tmp_path / ".spanreplay").rglob("*") if file.is_file())
    assert b"horse-battery-7" not in spool
    replayed = place.replay(*KERNEL, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


def test_p3_a_kernel_that_is_killed_loses_the_cell_under_way_alone(provider: Provider, tmp_path: Path) -> None:
    """Earlier cells are whole; the running one is incomplete, with its calls so far."""
    place = make_place(tmp_path, provider)
    with a_kernel(place) as kernel:
        kernel.execute(ASKING)
        kernel.client.execute('ask("question-1")\ntime.sleep(600)')
        await_true(lambda: len(provider.requests) == 1)
        await_true(lambda: any(call.kind == "llm" for unit in units_of(place) for call in unit.calls))
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    first, second = cells_of(place)
    assert first.completeness().is_complete
    assert not second.completeness().is_complete
    assert [call.boundary for call in second.calls] == ["compute:input", "llm:openai.chat.completions"]


def test_p3_p4_an_interrupted_cell_is_recorded_as_cancelled_and_replays(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replays if interrupted in a model call or an await, else it is incomplete. The kernel runs further cells."""
    monkeypatch.setattr("support.provider.SLOW_S", TIMEOUT_S)
    place = make_place(tmp_path, provider)
    awaiting = """async def tick():
    while True:
        await asyncio.sleep(0.05)

await asyncio.gather(think("slow question-2"), tick())"""
    sources = (
        'print("asks")\nask("slow question-1")',
        awaiting,
        'ask("question-3")\nwhile True:\n    time.sleep(0.01)',
    )
    with a_kernel(place) as kernel:
        kernel.execute(ASKING)
        for number, source in enumerate(sources, 1):
            kernel.client.execute(source, stop_on_error=False)
            await_true(lambda n=number: len(provider.requests) == n)  # type: ignore[misc]  # bound now
            await_true(partial(_has_answer, place, number))
            (kernel.interrupt_blocked if number == 1 else kernel.manager.interrupt_kernel)()
            assert kernel.client.get_shell_msg(timeout=TIMEOUT_S)["content"]["status"] == "error"
        assert kernel.execute("1 + 1")["status"] == "ok"
    provider.stop()
    units = cells_of(place)
    assert [unit.root.outcome for unit in units] == ["ok", "cancelled", "cancelled", "cancelled", "ok"]
    assert [unit.completeness().is_complete for unit in units] == [True, True, True, False, True]
    names = [output_of(unit)["error"]["ename"] for unit in units[1:4]]
    assert names == ["KeyboardInterrupt", "CancelledError", "KeyboardInterrupt"]
    runs = [word for unit in units[1:] for word in ("--run", unit.run_id)]
    suite = replay_suite(place, *KERNEL, options=(*runs, "--warm", "all"))
    told = [suite.words()[unit.run_id] for unit in units[1:]]
    assert told == ["identical", "identical", "incomplete", "identical"], suite.stderr


def _has_answer(place: Workplace, number: int) -> bool:
    """Whether the cell is between its calls; the first two are interrupted while they wait."""
    return number < 3 or any(call.kind == "llm" and call.end_seq >= 0 for call in cells_of(place)[number].calls)


def test_p2_p4_a_task_that_a_cell_starts_goes_on_while_others_are_executed(provider: Provider, tmp_path: Path) -> None:
    """Its later calls aren't part of later cells; each of those replays after the cell that started it."""
    place = make_place(tmp_path, provider)
    starting = """told = asyncio.Event()

async def work():
    first = await think("question-1")
    await told.wait()
    return first + await think("question-1 later")

task = asyncio.create_task(work())
await asyncio.sleep(0)"""
    asking, waking = 'ask("question-2")', "told.set()\nawait asyncio.sleep(0)"
    sources = (ASKING, starting, asking, waking, "print(task.result())")
    with a_kernel(place) as kernel:
        for number, source in enumerate(sources):
            await_true(lambda n=number: n != 4 or kernel.evaluate("task.done()") == "True")  # type: ignore[misc]  # bound now
            assert kernel.execute(source)["status"] == "ok"
            await_true(lambda n=number: len(provider.requests) >= (0, 1, 2, 3, 3)[n])  # type: ignore[misc]  # bound now
    provider.stop()
    units = cells_of(place)
    assert all(unit.completeness().is_complete for unit in units)
    insist_identical(place, *KERNEL, units=units[1:], options=("--warm", "all"))


def test_p3_p4_a_suite_replays_cells_that_stand_for_themselves_from_one_start(
    provider: Provider, tmp_path: Path
) -> None:
    """Each replays in a fork of a started kernel; cells that need others replay too, if those are replayed before."""
    place = make_place(tmp_path, provider)
    write_notebook(place, "report.ipynb", (ALONE, f'{ASKING}\nawait think("question-2")', 'ask("question-3")'))
    assert place.run("record", "--", "jupyter", *EXECUTE, "report.ipynb").returncode == 0
    provider.stop()
    for options, status, starts in ((("--warm", "0"), 3, 1), (("--warm", "all"), 0, 1), ((), 0, 3)):
        done = place.run("suite", "--app", "report.ipynb", *options, "--", str(place.python), *KERNEL)
        assert done.returncode == status, done.stderr
        assert f"; {starts} start" in done.stderr
