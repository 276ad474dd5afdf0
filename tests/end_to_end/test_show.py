"""`spanreplay show` for a person on call: the calls that matter, one page at a time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.replaying import BIN, TIMEOUT_S, Workplace
from support.terminal import run_in_terminal

AGENT = """
import spanreplay

@spanreplay.boundary("tool", name="refund", effect="write")
def refund(amount):
    if amount > 100:
        raise ValueError("more than the limit")
    return {"note": f'refunded "{amount}" euro', "a": "a" * 40}

@spanreplay.boundary("retriever", name="policy")
def policy(topic):
    return [f"policy of {topic}"]

policy("refunds")
for amount in (5, 50, 500):
    try:
        refund(amount)
    except ValueError:
        pass
"""
SHOW = [str(BIN / "spanreplay"), "show", "latest"]
PAGER = "#!/bin/sh\necho paged; cat\n"


@pytest.fixture
def recorded(workplace: Workplace) -> Workplace:
    """Four calls: one of a retriever, three of a tool, the last of which fails."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    return workplace


def show(workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    """The output to a pipe."""
    return subprocess.run(
        [*SHOW, *options], cwd=workplace.path, env=workplace.environ, text=True, capture_output=True, check=False,
        timeout=TIMEOUT_S,
    )  # fmt: skip


def numbers(workplace: Workplace, *options: str) -> list[int]:
    """The numbers of the selected calls."""
    return [call["call"] for call in json.loads(show(workplace, "--json", *options).stdout)["calls"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [1, 2, 3, 4]),
        (("--kind", "tool"), [2, 3, 4]),
        (("--kind", "tool", "--kind", "retriever"), [1, 2, 3, 4]),
        (("--kind", "llm"), []),
        (("--errors",), [4]),
        (("--grep", 'refunded "50?"'), [2, 3]),
        (("--grep", '"amount": ?500'), [4]),
        (("--grep", "(?i)POLICY OF"), [1]),
        (("--kind", "tool", "--grep", "limit", "--errors"), [4]),
    ],
    ids=["all", "kind", "kinds", "none", "errors", "text", "json", "ignoring case", "together"],
)
def test_show_chooses_calls(recorded: Workplace, options: tuple[str, ...], expected: list[int]) -> None:
    """Select by kind, by error, by text as people read it or as it is stored; calls keep their numbers."""
    assert numbers(recorded, *options) == expected
    shown = show(recorded, *options).stdout
    assert (f"{len(expected)} of 4 calls match" in shown) == (len(expected) < 4)
    assert [n for n in range(1, 5) if f" {n} tool refund" in shown or f" {n} retriever policy" in shown] == expected


def test_show_grep_says_where_it_found_it(recorded: Workplace) -> None:
    """It prints the text around the match and the part of the call that contains it."""
    assert 'found in response: refunded "50" euro' in show(recorded, "--grep", "50. euro").stdout


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--grep", "("), 2, "is not a regular expression: missing ), unterminated subpattern"),
        (("--call", "1", "--errors"), 2, "leave out --kind, --grep and --errors"),
        (("--kind", "tol"), 2, "is not one of"),
        (("--grep", "(a|a)*b"), 1, "error: the search took longer than 10 s"),
    ],
    ids=["no pattern", "one call", "no kind", "endless"],
)
def test_show_wrong_choice_is_one_line(recorded: Workplace, options: tuple[str, ...], status: int, said: str) -> None:
    """An invalid pattern, or one that would run for too long, gives one line and no data."""
    done = show(recorded, *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_show_uses_the_pager_where_the_screen_is_too_small(recorded: Workplace, tmp_path: Path) -> None:
    """PAGER shows output longer than the terminal; short output, a pipe and --no-pager don't use it."""
    pager = tmp_path / "pager"
    pager.write_text(PAGER)
    pager.chmod(0o755)
    environ = {**recorded.environ, "PAGER": str(pager)}

    def is_paged(*options: str, is_piped: bool = False) -> bool:
        seen = run_in_terminal([*SHOW, *options], recorded.path, environ, is_piped=is_piped)
        assert seen.status == 0
        assert "refund" in seen.screen + seen.stdout
        return "paged" in seen.screen + seen.stdout

    assert not is_paged("--errors")
    assert not is_paged("--call", "4", is_piped=True)
    recorded.write("agent.py", AGENT + "policy('more')\n" * 12)
    recorded.record("agent.py")
    assert is_paged()
    assert not is_paged("--no-pager")
    assert not is_paged(is_piped=True)
