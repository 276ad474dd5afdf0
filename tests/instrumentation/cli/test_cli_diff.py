"""`spanreplay diff`: exit statuses, output, and pages that hostile recordings can't alter."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from instrumentation.cli.conftest import Invoke
from spanreplay.model.call import CallRecord, Recording
from support.recordings import write_spool
from support.runs import make_call, make_recording, make_run_id

Step = tuple[str, str, str, str]
"""Boundary, lane, request and response of a call."""
TOOL, MODEL = "tool:get", "llm:ask"


def keep(folder: Path, number: int, *steps: Step, **root: Any) -> Recording:
    """A run of these calls, in the directory that commands search."""
    run_id = make_run_id(number)
    calls = tuple(_make(run_id, at, step) for at, step in enumerate(steps))
    manifest = {"calls": len(calls), "exit": 0, **root.pop("manifest", {})}
    made = Recording(replace(make_recording(run_id).root, manifest=manifest, **root), calls)
    write_spool(folder, made)
    return made


def _make(run_id: str, at: int, step: Step) -> CallRecord:
    boundary, lane, request, response = step
    kind, name = boundary.split(":")
    meta = {"model": "gpt-x", "tokens_in": 1000, "tokens_out": 100} if kind == "llm" else {}
    call = make_call(run_id, 2 * at + 1, kind=kind, name=name, lane=lane, key=f"{boundary} {request}", request=request)
    return replace(call, response=response, meta=meta, end_seq=2 * at + 2, code=f"agent.py:{len(lane)} step")


def step(boundary: str, asked: Any, answer: Any, lane: str = "main") -> Step:
    """One call."""
    return boundary, lane, json.dumps({"asked": asked}), json.dumps({"value": answer})


def test_w1_equal_runs_are_the_same(spanreplay: Invoke, data_dir: Path) -> None:
    """Equal runs give status 0; if either is incomplete, status 4 and the reason."""
    steps = step(TOOL, 1, "x"), step(MODEL, 2, "y")
    a, b = keep(data_dir, 1, *steps), keep(data_dir, 2, *steps)
    found = spanreplay("diff", a.run_id, b.run_id)
    assert (found.exit_code, found.output.splitlines()[0]) == (0, "✔ the same: 2 calls, their answers and the output")
    torn = keep(data_dir, 3, *steps, manifest={"holes": ["something was not seen"]})
    found = spanreplay("diff", a.run_id, torn.run_id)
    assert found.exit_code == 4
    assert "no difference in what was recorded" in found.output
    assert "B: something was not seen" in found.output


def test_w1_another_answer_is_a_difference_though_all_requests_are_equal(spanreplay: Invoke, data_dir: Path) -> None:
    """Another answer is a difference, in the whole run or among the calls of --only."""
    a = keep(data_dir, 1, step(TOOL, 1, "x"), step(MODEL, 2, "y"))
    b = keep(data_dir, 2, step(TOOL, 1, "x"), step(MODEL, 2, "z"))
    found = json.loads(spanreplay("diff", a.run_id, b.run_id, "--json").output)
    assert (found["schema"], found["first"]["change"], found["first"]["b"]) == ("run_diff/1", "other_output", 2)
    assert found["counts"] == {"same": 1, "changed": 0, "other_output": 1, "added": 0, "dropped": 0, "moved": 0}
    assert spanreplay("diff", a.run_id, b.run_id, "--only", "tool").exit_code == 0
    assert spanreplay("diff", a.run_id, b.run_id, "--only", "llm:*").exit_code == 3


def test_w1_another_end_is_a_difference_though_all_calls_are_equal(spanreplay: Invoke, data_dir: Path) -> None:
    """Another exit status or standard output is a difference."""
    a, b = keep(data_dir, 1, step(TOOL, 1, "x")), keep(data_dir, 2, step(TOOL, 1, "x"), manifest={"exit": 2})
    found = spanreplay("diff", a.run_id, b.run_id)
    assert found.exit_code == 3
    assert "but a different end: A ok, exit status 0; B ok, exit status 2" in found.output


def test_s42_cost_is_attributed_to_the_loop_that_made_it(spanreplay: Invoke, data_dir: Path) -> None:
    """$12.00 in place of $0.40: $11.60 come from the loop at step 9, whose first call is the one that A lacks."""
    steps = [step(MODEL, at, at) for at in range(8)]
    a = keep(data_dir, 1, *steps, *(step(MODEL, 100 + at, at, "main/t:loop") for at in range(2)))
    b = keep(data_dir, 2, *steps, *(step(MODEL, 100 + at, at, "main/t:loop") for at in range(292)))
    price = "gpt-x=30,100"  # 1,000 tokens in and 100 out: $0.04 a call
    found = spanreplay("diff", a.run_id, b.run_id, "--price", price)
    assert "A $0.4, 10,000+1,000 tokens in 10 calls; B $12, 300,000+30,000 tokens in 300 calls" in found.output
    assert "+$11.6 llm:ask at agent.py:11 step: 2 calls in A, 292 in B, first at call 11 of B" in found.output
    cost = json.loads(spanreplay("diff", a.run_id, b.run_id, "--price", price, "--json").output)["cost"]
    place = cost["places"][0]
    assert (round(place["b"]["usd"] - place["a"]["usd"], 9), place["first_more"]) == (11.6, 11)
    assert round(cost["b"]["usd"] - cost["a"]["usd"], 9) == 11.6
    unknown = spanreplay("diff", a.run_id, b.run_id, "--price", "gpt-z=1,1")
    assert unknown.exit_code == 1
    assert "no price known for 'gpt-x'" in unknown.output
    plain = spanreplay("diff", a.run_id, b.run_id, "--cost")
    assert "+319,000 tokens llm:ask at agent.py:11 step" in plain.output


def test_w1_of_a_long_command_line_the_words_that_differ_are_shown(spanreplay: Invoke, data_dir: Path) -> None:
    """If no value explains a difference, the command line may be its cause, and its differing words are shown."""
    words = [f"--option-{number}" for number in range(30)]
    a = keep(data_dir, 1, step(TOOL, 1, "x"), env={"argv": [*words, "--fast"]})
    b = keep(data_dir, 2, step(TOOL, 2, "x"), env={"argv": [*words, "--slow"]})
    found = spanreplay("diff", a.run_id, b.run_id)
    assert 'perhaps the command line has ["--fast"] in A, ["--slow"] in B' in found.output


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_w1_one_page_shows_both_values_and_runs_nothing(spanreplay: Invoke, data_dir: Path, here: Path) -> None:
    """All values in the page are text, there and in a terminal, and none of them runs."""
    bad = "<script>alert(1)</script>\x1b[2Jred & \"blue\" onclick='x'"
    a, b = keep(data_dir, 1, step(TOOL, "plain", "x")), keep(data_dir, 2, step(TOOL, bad, "x"), app="<img src=x>")
    found = spanreplay("diff", a.run_id, b.run_id, "--html", "page.html")
    assert found.exit_code == 3
    assert "\x1b[2J" not in found.output
    page = (here / "page.html").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(page)
    assert not tags.found & {"script", "img", "iframe", "link"}
    assert not {each for each in tags.attributes if each.startswith("on") or each in ("src", "href")}
    assert "default-src 'none'" in page
    assert "&lt;script&gt;" in page.replace("<mark>", "").replace("</mark>", "")
    assert "\x1b" not in page


def test_w1_ten_thousand_calls_are_compared(spanreplay: Invoke, data_dir: Path) -> None:
    """Of ten thousand calls, most with equal requests, the one new call in the middle is found."""
    steps = [step(MODEL if at % 3 else TOOL, at % 7, at) for at in range(10_000)]
    a = keep(data_dir, 1, *steps)
    steps[5_000:5_000] = [step(TOOL, "new", "x")]
    b = keep(data_dir, 2, *steps)
    found = json.loads(spanreplay("diff", a.run_id, b.run_id, "--json").output)
    assert (found["counts"]["same"], found["counts"]["added"]) == (10_000, 1)
    assert (found["first"]["change"], found["first"]["b"]) == ("added", 5_001)


@pytest.mark.parametrize("named", ["f" * 32, "nowhere.replay"])
def test_w1_a_run_that_is_not_here_is_an_error(named: str, spanreplay: Invoke, data_dir: Path) -> None:
    """The error says which run is missing and what to do."""
    a = keep(data_dir, 1, step(TOOL, 1, "x"))
    found = spanreplay("diff", a.run_id, named)
    assert found.exit_code == 1
    assert "error:" in found.output
    assert named[:12] in found.output
