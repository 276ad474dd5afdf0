"""IPython at a prompt: each typed cell is a separate run, in a terminal and embedded in a program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from support.notebooks import ASKING, cells_of, make_place
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.suites import insist_identical
from support.workers import input_of, output_of

EVERYWHERE: Final = (
    "reply = ask('question-1')",
    "print(reply, WARM, time.time()); reply.upper()",
    "lines = !date +%N",
    "raise KeyError(lines)",
)
AT_TERMINAL: Final = ("await think('question-2')", "%time _ = ask('question-3')", "!echo of a shell")
"""Cells that behave differently in an embedded IPython, where a test would not see them."""
PROGRAM: Final = f"{ASKING}\nWARM = ask('warm up')\n"
EMBEDDED: Final = f"""
import IPython
{PROGRAM}
def main():
    local = 1
    IPython.embed(simple_prompt=True, banner1="", colors="nocolor")

main()
"""


@pytest.mark.parametrize(
    ("command", "name", "typed"),
    [
        (("-m", "IPython", "--simple-prompt", "--no-banner", "-i", "shop.py"), "IPython", EVERYWHERE + AT_TERMINAL),
        (("embedded.py",), "embedded", EVERYWHERE),
    ],
    ids=["terminal", "embedded"],
)
@pytest.mark.sampled(1)
def test_p3_p4_each_cell_typed_at_a_prompt_is_a_run_and_replays(
    command: Sequence[str], name: str, typed: Sequence[str], provider: Provider, tmp_path: Path
) -> None:
    """The program's work before the prompt is the start shared by all cells; a failed cell is a run too."""
    place = make_place(tmp_path, provider)
    place.write("shop.py", PROGRAM)
    place.write("embedded.py", EMBEDDED)
    done = subprocess.run(
        [str(place.python.parent / "opentelemetry-instrument"), str(place.python), *command],
        cwd=tmp_path,
        env=place.environ,
        input="\n".join((*typed, "exit", "")),
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    provider.stop()
    units = cells_of(place)[:-1]  # the last one is `exit`
    assert [input_of(unit)["source"] for unit in units] == list(typed)
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    assert [sum(call.kind == "llm" for call in unit.calls) for unit in units] == [1, 0, 0, 0, 1, 1, 0][: len(typed)]
    assert {unit.root.app for unit in units} == {name}
    printed, result = output_of(units[1])["outputs"]
    assert printed["text"].split(" You asked")[0] in done.stdout
    assert result["output_type"] == "execute_result"
    assert output_of(units[3])["error"]["ename"] == "KeyError"
    warm = place.replay(*command, source=units[-1].run_id, options=("--warm", "all"))
    assert warm.status == 0, warm.stderr
    insist_identical(place, *command, units=units, options=("--warm", "all"))
