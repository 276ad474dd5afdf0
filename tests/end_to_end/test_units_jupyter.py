"""Notebooks of Jupyter: each cell is a run of its own, and replays without a kernel's client and the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from support.notebooks import ASKING, EXECUTE, KERNEL, cells_of, make_place, read_outputs, write_notebook
from support.provider import Provider
from support.workers import input_of, output_of

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
    """Values, text, `await`, magics, a shell and an error: one replays alone, all with the cells before them."""
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
    for unit in units[1:]:
        warm = place.replay(*KERNEL, source=unit.run_id, options=("--warm", "all"))
        assert warm.status == 0, warm.stderr
        assert all(not each["why"] for each in warm.verdict["warm_up"]["units"])


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a notebook's cell shows as its run has it: texts are whole there, and errors apart."""
    found: list[dict[str, Any]] = []
    for each in outputs:
        shown: dict[str, Any] = {name: each[name] for name in ("output_type", "name", "text", "data") if name in each}
        if "text" in shown:
            shown["text"] = "".join(shown["text"])
        if "data" in shown:
            shown["data"] = {kind: "".join(lines) for kind, lines in shown["data"].items()}
        if each["output_type"] != "error":
            found.append(shown)
    return found
