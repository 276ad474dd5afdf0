"""`assert_behaves_like`: planted regressions are found in an agent's recordings, harmless edits are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import pytest

import spanreplay
from spanreplay.model.errors import ConfigError
from spanreplay.recording.bundle import load_file
from spanreplay.testing import MadeCall, assert_behaves_like, find_shifts
from support.provider import Provider

SORTED_OUT: Final = '{"topic": "refund", "urgency": 3, "tags": ["order"]}'
REPLY: Final = "Dear Ada, we have passed your refund on to a colleague."


@spanreplay.boundary("tool", name="get_order", effect="read")
def _get_order(order: int) -> dict[str, Any]:
    return {"order": order, "amount": 19}


@spanreplay.boundary("tool", name="fetch_order", effect="read")
def _fetch_order(order: int) -> dict[str, Any]:
    return {"order": order, "amount": 19}


@spanreplay.boundary("tool", name="get_weather", effect="read")
def _get_weather() -> str:
    return "sunny"


@spanreplay.boundary("tool", name="escalate", effect="write")
def _escalate(reason: str) -> dict[str, Any]:
    return {"ticket": 4}


@spanreplay.boundary("tool", name="close_ticket", effect="irreversible")
def _close_ticket(reason: str) -> dict[str, Any]:
    return {"ticket": 4}


@dataclass(frozen=True)
class Agent:
    """An agent that sorts a ticket, looks at orders, escalates and replies; its members are the edits to it."""

    sorted_out: str = SORTED_OUT
    reply: str = REPLY
    orders: tuple[int, ...] = (17, 18)
    sort_prompt: str = "Sort this ticket"
    reply_prompt: str = "Reply to the customer"
    model: str = "gpt-4o"
    parameters: Mapping[str, Any] | None = None
    get_order: Callable[[int], dict[str, Any]] = _get_order
    before: tuple[Callable[[], object], ...] = ()
    escalates: Callable[[str], object] | None = _escalate
    is_parallel: bool = False
    is_stream: bool = False
    has_other_names: bool = False
    is_reply_first: bool = False
    replies: int = 1
    trouble: str = ""

    def run(self) -> None:
        """Run it once."""
        for each in self.before:
            each()
        with openai.OpenAI(max_retries=2) as client:
            if self.is_reply_first:
                self._write(client)
            sort = self._categorise if self.has_other_names else self._sort
            json.dumps(sort(client))
            if self.is_parallel:
                with ThreadPoolExecutor() as pool:
                    list(pool.map(self.get_order, self.orders))
            else:
                list(map(self.get_order, self.orders))
            if self.escalates is not None:
                self.escalates("amount")
            for _ in range(self.replies - self.is_reply_first):
                self._write(client)

    def _sort(self, client: openai.OpenAI) -> str:
        return self._ask(client, self.sort_prompt, self.sorted_out)

    def _categorise(self, client: openai.OpenAI) -> str:
        return self._ask(client, self.sort_prompt, self.sorted_out)

    def _write(self, client: openai.OpenAI) -> str:
        return self._ask(client, self.reply_prompt, self.reply)

    def _ask(self, client: openai.OpenAI, prompt: str, answer: str) -> str:
        text = f"{prompt} {self.trouble} say {json.dumps({'text': answer})}"
        made: Any = client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": text}],
            stream=self.is_stream,
            **(self.parameters or {}),
        )
        if self.is_stream:
            return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)
        return str(made.choices[0].message.content)


BENIGN: Final[dict[str, Agent]] = {
    "prompt reworded": Agent(sort_prompt="Which kind of ticket is this?"),
    "second prompt reworded": Agent(reply_prompt="Write a short and polite reply"),
    "reply worded differently": Agent(reply="Hello Ada! A colleague takes care of it."),
    "reply much longer": Agent(reply=" ".join([REPLY] * 20)),
    "reply with braces in it": Agent(reply="{name}, we have passed it on."),
    "other values in the JSON": Agent(sorted_out='{"topic": "invoice", "urgency": 5, "tags": []}'),
    "members in another order": Agent(sorted_out='{"tags": ["a", "b"], "urgency": 3, "topic": "refund"}'),
    "one more member": Agent(sorted_out='{"topic": "refund", "urgency": 3, "tags": [], "language": "en"}'),
    "JSON over several lines": Agent(sorted_out=json.dumps(json.loads(SORTED_OUT), indent=2)),
    "a fraction instead of a whole number": Agent(sorted_out='{"topic": "refund", "urgency": 2.5, "tags": []}'),
    "one look-up more": Agent(orders=(17, 18, 19)),
    "one look-up fewer": Agent(orders=(17,)),
    "another order": Agent(orders=(901, 902)),
    "look-ups in parallel": Agent(is_parallel=True),
    "a new tool that reads": Agent(before=(_get_weather,)),
    "another model": Agent(model="gpt-4o-mini"),
    "another temperature": Agent(parameters={"temperature": 0.7, "max_tokens": 400}),
    "streamed": Agent(is_stream=True),
    "a function renamed": Agent(has_other_names=True),
    "the reply first": Agent(is_reply_first=True),
}
"""Edits after which the agent behaves as before."""
REGRESSIONS: Final[dict[str, tuple[Agent, str]]] = {
    "twice, now six times": (
        Agent(orders=(1, 2, 3, 4, 5, 6)),
        "count get_order: 6 calls, at most 2 in the baseline",
    ),
    "JSON, now prose": (
        Agent(sorted_out="This ticket is about a refund."),
        "shape llm in Agent._ask: no answer is an object as JSON any more; now: prose (2)",
    ),
    "stopped escalating": (
        Agent(escalates=None),
        "stopped escalate: not called any more, 1 or more calls in every run of the baseline",
    ),
}


@pytest.fixture
def baseline(tmp_path: Path, provider: Provider) -> Path:
    """The recording of the agent before any edit."""
    return _record(Agent(), tmp_path, "baseline")


def _record(agent: Agent, folder: Path, name: str) -> Path:
    with spanreplay.record(name="agent", directory=folder / "data") as block:
        agent.run()
    return block.save(folder / f"{name}.replay")


@pytest.mark.parametrize("name", REGRESSIONS)
def test_s66_planted_regressions_are_caught(tmp_path: Path, baseline: Path, name: str) -> None:
    """Six calls instead of two, prose instead of JSON, and an escalation that is left out: each is found and named."""
    assert len(REGRESSIONS) == 3
    agent, text = REGRESSIONS[name]
    with pytest.raises(AssertionError) as failure:
        assert_behaves_like(_record(agent, tmp_path, "now"), baseline)
    assert str(failure.value) == f"the run does not behave like the baseline: 1 shift\n  {text}"


@pytest.mark.parametrize("name", BENIGN)
def test_s66_benign_edits_raise_no_alarm(tmp_path: Path, baseline: Path, name: str) -> None:
    """Twenty harmless edits to prompts, models, code and data pass."""
    assert len(BENIGN) == 20
    assert_behaves_like(_record(BENIGN[name], tmp_path, "now"), baseline)


def test_s66_members_of_an_answer_and_new_tools_are_compared(tmp_path: Path, baseline: Path) -> None:
    """A member that is gone or of another type, a code fence, and a new tool that changes something are shifts."""
    changed = '{"topic": 7, "tags": ["order"]}'
    agent = Agent(sorted_out=changed, before=(lambda: _close_ticket("done"),))
    assert [str(shift) for shift in find_shifts(_record(agent, tmp_path, "now"), baseline)] == [
        "new close_ticket: call 1 (irreversible) is in no run of the baseline",
        "shape llm in Agent._ask: 'topic' is a number; in the baseline: text",
        "shape llm in Agent._ask: 'urgency' is missing from an object as JSON",
    ]
    fenced = _record(Agent(sorted_out=f"```json\n{SORTED_OUT}\n```"), tmp_path, "fenced")
    assert [shift.rule for shift in find_shifts(fenced, baseline)] == ["shape"]


def test_s66_names_facts_and_several_baselines(tmp_path: Path, baseline: Path) -> None:
    """A renamed tool is stated, calls can be ignored, facts are the test's own, and any run of a baseline permits."""
    renamed = _record(Agent(get_order=_fetch_order), tmp_path, "renamed")
    assert [shift.rule for shift in find_shifts(renamed, baseline)] == ["stopped"]
    assert_behaves_like(renamed, baseline, renamed={"get_order": "fetch_order"})
    assert_behaves_like(renamed, baseline, ignore=["get_order"])
    silent = _record(Agent(escalates=None), tmp_path, "silent")
    often = _record(Agent(orders=(1, 2, 3, 4, 5, 6)), tmp_path, "often")
    assert_behaves_like(silent, [baseline, silent])
    assert_behaves_like(often, load_file(baseline), more_calls=3)
    assert_behaves_like(often, [baseline, often])

    def orders(calls: Sequence[MadeCall]) -> list[object]:
        return [call.arguments["order"] for call in calls if call.name == "get_order"]

    assert_behaves_like(baseline, baseline, facts={"orders": orders})
    (shift,) = find_shifts(_record(Agent(orders=(18, 17)), tmp_path, "order"), baseline, facts={"orders": orders})
    assert str(shift) == "fact orders: [18, 17], in the baseline [17, 18]"
    with pytest.raises(ConfigError, match="a baseline of 0 runs"):
        assert_behaves_like(baseline, [])


def test_s66_refused_attempts_are_not_counted(tmp_path: Path, baseline: Path) -> None:
    """A provider that is busy for a while makes the SDK try again: that is not a shift."""
    agent = Agent(trouble="fail 429 twice")
    assert_behaves_like(_record(agent, tmp_path, "busy"), baseline)
