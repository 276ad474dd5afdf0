"""Agents on trio and anyio, unmodified: recorded, and replayed in another process with the provider stopped."""

from __future__ import annotations

import pytest

from support.agents import AGENTS
from support.provider import Provider
from support.replaying import Workplace


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("trio_agent.py",), ("anyio_agent.py", "trio"), ("anyio_agent.py", "asyncio")],
    ids=["trio", "anyio_on_trio", "anyio_on_asyncio"],
)
def test_s68_structured_agents_replay_byte_for_byte(
    provider: Provider, workplace: Workplace, command: tuple[str, ...]
) -> None:
    """Each task gets its own answer in the recorded order; time-outs and back-offs come again without waiting."""
    agent = AGENTS / "structured" / command[0]
    recorded = workplace.record(agent, *command[1:])
    recording = workplace.recording()
    assert recording.completeness().reasons == ()
    asked = len(provider.requests)
    provider.stop()
    replayed = workplace.replay(agent, *command[1:])
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["divergences"] == []
    assert replayed.status == 0, replayed.stderr
    assert len(provider.requests) == asked
