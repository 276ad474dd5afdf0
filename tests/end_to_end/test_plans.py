"""Plans on real SDKs: calls by number, patches, budgets, partial replays; the provider counts its requests."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.provider import Provider
from support.replaying import BIN, Replayed, Workplace

LLM = "llm:openai.chat.completions"
AGENT = """
import json, os, sys
import spanreplay
from groq import Groq

client = Groq(max_retries=0)

def ask(text):
    messages = [{"role": "system", "content": "be brief. "}, {"role": "user", "content": text}]
    if os.environ.get("STREAM"):
        stream = client.chat.completions.create(model="gpt-x", messages=messages, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

@spanreplay.boundary("tool", name="price", effect="read")
def price(item, count=1):
    with open("bodies", "a") as log:
        log.write(f"{item} {count}\\n")
    return {"item": item, "total": 7 * count}

for n in range(4):
    print(ask(f"question {n}"))
print(price("pen"), price("ink", count=2))
if os.environ.get("CHAIN"):
    print(ask("again: " + json.dumps(price("cap"))))
"""


@pytest.fixture
def recorded(provider: Provider, workplace: Workplace) -> list[str]:
    """The agent, recorded once; its output lines."""
    workplace.write("agent.py", AGENT)
    printed = workplace.record("agent.py").stdout.splitlines()
    (workplace.path / "bodies").unlink()
    provider.requests.clear()
    return printed


def replay(workplace: Workplace, *options: str, **environ: str) -> Replayed:
    """Replay the agent under a plan."""
    return workplace.replay("agent.py", options=options, **environ)


def test_s64_first_calls_are_free_and_the_rest_goes_by_the_plan(
    provider: Provider, workplace: Workplace, recorded: list[str]
) -> None:
    """The patched third prompt goes live with the new text; the two before it are served for free."""
    done = replay(workplace, "--set", 'llm[3].system += "ask first"', "--on-change", "live", "--stub", "llm[4]")
    assert done.status == 3, done.stderr
    ((_, body),) = provider.requests
    assert body["messages"] == [
        {"role": "system", "content": "be brief. ask first"},
        {"role": "user", "content": "question 2"},
    ]
    lines = done.stdout.splitlines()
    assert [a == b for a, b in zip(lines, recorded, strict=True)] == [True, True, False, True, True]
    first = done.verdict["divergences"][0]
    assert (first["kind"], first["index"]) == ("changed_call", 2)
    assert first["cause"] == 'set by the plan: llm[3].system += "ask first"'
    assert done.verdict["counts"]["live"] == 1
    assert not (workplace.path / "bodies").exists()


def test_s69_only_what_is_live_is_paid_for(provider: Provider, workplace: Workplace, recorded: list[str]) -> None:
    """A replay, also in CI, asks nobody and pays no token; of a changed run only the changed call is paid for."""
    for ci in ("", "true"):
        done = replay(workplace, CI=ci)
        assert (done.status, provider.requests) == (0, [])
        assert done.verdict["tokens"]["live"] == 0 < done.verdict["tokens"]["recorded"]
    assert done.stdout.splitlines() == recorded
    changed = replay(workplace, "--set", 'llm[3].system += "ask first"', "--on-change", "live", "--stub", "llm[4]")
    assert len(provider.requests) == changed.verdict["counts"]["live"] == 1
    assert 0 < changed.verdict["tokens"]["live"] < changed.verdict["tokens"]["recorded"]


@pytest.mark.parametrize(("mode", "lines"), [("stop", 2), ("serve", 5)])
def test_s64_patched_request_is_a_changed_call_by_default(
    mode: str, lines: int, provider: Provider, workplace: Workplace, recorded: list[str]
) -> None:
    """Unless the plan lets it go live, the patched call stops the replay; with `serve` it gets the recorded answer."""
    done = replay(workplace, "--set", 'llm[3].system += "ask first"', "--on-change", mode)
    assert (done.status, provider.requests) == (3, [])
    assert done.causes() == [("changed_call", LLM)]
    assert done.stdout.splitlines() == recorded[:lines]


@pytest.mark.parametrize("stream", ["", "yes"], ids=["whole", "streamed"])
def test_s64_answer_of_a_model_is_overridden(stream: str, provider: Provider, workplace: Workplace) -> None:
    """The SDK gives the agent the patched `response.text`, also as a stream; the provider isn't called."""
    workplace.write("agent.py", AGENT)
    printed = workplace.record("agent.py", STREAM=stream).stdout.splitlines()
    provider.stop()
    done = replay(workplace, "--set", 'llm[2].response.text = "hold"', STREAM=stream)
    assert done.stdout.splitlines() == [printed[0], "hold", *printed[2:]]
    assert (done.status, done.causes()) == (3, [("output_changed", LLM)])
    assert done.verdict["counts"]["overridden"] == 1


def test_s64_tool_is_patched_on_both_sides(workplace: Workplace, recorded: list[str]) -> None:
    """A patched argument reaches the live body; a patched result reaches the agent without running a body."""
    done = replay(
        workplace, "--live", "tool:price[1]", "--set", "tool:price[1].count = 5", "--set",
        "tool:price[2].response.total = 1",
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "{'item': 'pen', 'total': 35} {'item': 'ink', 'total': 1}"
    assert (workplace.path / "bodies").read_text() == "pen 5\n"
    assert ("changed_call", "tool:price") in done.causes()


def test_s64_bad_patch_ends_before_the_agent_starts(workplace: Workplace, recorded: list[str]) -> None:
    """A patch that matches nothing is refused with a caret, and the agent prints nothing."""
    done = replay(workplace, "--set", 'llm[7].system += "x"')
    assert (done.status, done.stdout, done.verdict) == (2, "", {})
    assert "the recording has no such call, only 4 of llm:*" in done.stderr
    assert '  llm[7].system += "x"\n  ^\n' in done.stderr


def test_s2_tools_of_a_number_run_live(provider: Provider, workplace: Workplace, recorded: list[str]) -> None:
    """`--live tool:price[2]` runs only the body of the second call, once, with the provider gone."""
    provider.stop()
    done = replay(workplace, "--stub", "llm:*", "--live", "tool:price[2]")
    assert (done.status, done.stdout.splitlines()) == (0, recorded)
    assert (workplace.path / "bodies").read_text() == "ink 2\n"
    assert done.verdict["counts"]["live"] == 1


def test_s28_three_ways_with_a_changed_prompt(provider: Provider, workplace: Workplace, recorded: list[str]) -> None:
    """With a changed prompt, strict reports `changed_call`, `serve` runs to the end, and neither opens a socket."""
    workplace.write("agent.py", AGENT.replace("be brief. ", "be bold. "))
    strict = replay(workplace, "--strict")
    assert (strict.status, strict.causes(), strict.stdout) == (3, [("changed_call", LLM)], "")
    served = replay(workplace, "--on-change", "serve")
    assert (served.status, served.stdout.splitlines()) == (3, recorded)
    assert [d["kind"] for d in served.verdict["divergences"]] == ["changed_call"] * 4
    partly = replay(workplace, "--on-change", "llm[..3]=serve")
    assert (partly.status, partly.stdout.splitlines()) == (3, recorded[:3])
    for done in (strict, served, partly):
        assert (done.verdict["sockets_denied"], done.verdict["tokens"]["live"]) == ([], 0)
    assert provider.requests == []


def test_s42_budget_stops_the_live_calls(provider: Provider, workplace: Workplace, recorded: list[str]) -> None:
    """`--max-cost` allows live calls until it is used up, then exits with 6; a model without a price is refused."""
    unpriced = replay(workplace, "--live", "llm", "--max-cost", "1")
    assert (unpriced.status, unpriced.stdout) == (2, "")
    assert "no price known for 'gpt-x'" in unpriced.stderr
    assert "--price 'gpt-x=" in unpriced.stderr
    assert provider.requests == []

    done = replay(workplace, "--live", "llm", "--max-cost", "0.000001", "--price", "gpt-x=10,30")
    assert (done.status, done.verdict["verdict"]) == (6, "over_budget")
    assert len(provider.requests) == 1
    assert "✘ budget exceeded: $" in done.stderr
    cost = done.verdict["cost"]
    assert cost["live_usd"] > cost["max_usd"] == 0.000001

    provider.requests.clear()
    enough = replay(workplace, "--live", "llm", "--max-cost", "5", "--price", "gpt-*=10,30")
    assert (enough.status, len(provider.requests)) == (3, 4)
    live = enough.verdict["tokens"]["live"]
    assert 10e-6 * live <= enough.verdict["cost"]["live_usd"] <= 30e-6 * live


def test_s63_replay_to_a_call_reports_up_to_there(
    provider: Provider, workplace: Workplace, recorded: list[str]
) -> None:
    """`--to N` ends before call N: two calls as recorded, no request sent, exit 4, the reason in the report."""
    provider.stop()
    calls = workplace.recordings()[-1].calls
    third = calls[2].number
    done = replay(workplace, "--to", str(third))
    assert (done.status, done.verdict["verdict"], done.verdict["divergences"]) == (4, "incomplete", [])
    assert done.verdict["stopped"] == f"stopped before call {third} ({LLM}), as asked"
    assert done.verdict["counts"]["served"] == 2
    assert f"! stopped before call {third} ({LLM}), as asked; 2 calls as recorded up to there" in done.stderr
    assert done.stdout.splitlines() == recorded[:2]
    assert f"the recording's last call is {calls[-1].number}" in replay(workplace, "--to", "99").stderr


HOLES = """
import spanreplay

class Opaque:
    pass

@spanreplay.boundary("tool", name="fetch", effect="read")
def fetch(size):
    return "x" * size if size else Opaque()

print(len(fetch(5_000_000)))
print(fetch(3))
print(type(fetch(0)).__name__)
"""


def test_n3_strict_replay_of_an_incomplete_run_is_refused(workplace: Workplace) -> None:
    """`show` and `ls` mark a run with a hole; its strict replay is refused with the hole and a way to continue."""
    workplace.write("agent.py", HOLES)
    workplace.record("agent.py")
    run_id = workplace.recording().run_id
    third = workplace.recording().calls[2].number
    hole = f"call {third} (tool:fetch): value unserializable at $"
    for command in (["show", run_id], ["ls"]):
        shown = subprocess.run(
            [str(BIN / "spanreplay"), *command],
            cwd=workplace.path,
            env=workplace.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "incomplete" in shown.stdout
        assert command == ["ls"] or hole in shown.stdout
    refused = workplace.replay("agent.py", options=["--strict"])
    assert (refused.status, refused.stdout, refused.verdict["verdict"]) == (4, "", "incomplete")
    assert "! incomplete recording, not replayed" in refused.stderr
    assert hole in refused.stderr
    assert "--to N" in refused.stderr
    onward = workplace.replay("agent.py")
    assert (onward.status, onward.stdout) == (4, "5000000\nxxx\n")
    upto = workplace.replay("agent.py", options=["--strict", "--to", str(third)])
    assert (upto.status, upto.stdout, upto.verdict["divergences"]) == (4, "5000000\nxxx\n", [])


TOO_LONG = HOLES.replace("5_000_000", "17 * 1024 * 1024").replace("print(type(fetch(0)).__name__)", "")


def test_s36_large_result_round_trips_and_truncation_blocks_strict_replay(workplace: Workplace) -> None:
    """Five million characters replay completely; truncation at the limit makes the run incomplete and is refused."""
    agent = HOLES.replace("print(type(fetch(0)).__name__)", "print(hash(fetch(5_000_001)) == hash('x' * 5_000_001))")
    workplace.write("agent.py", agent)
    printed = workplace.record("agent.py").stdout
    done = workplace.replay("agent.py", options=["--strict"])
    assert (done.status, done.stdout) == (0, printed), done.stderr
    workplace.write("agent.py", TOO_LONG)
    workplace.record("agent.py")
    assert "1 calls truncated" in workplace.recordings()[-1].completeness().reasons
    refused = workplace.replay("agent.py", options=["--strict"])
    assert (refused.status, refused.stdout) == (4, "")
    assert json.loads(json.dumps(refused.verdict))["reasons"] == ["1 calls truncated"]
