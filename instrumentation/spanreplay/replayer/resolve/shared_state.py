"""The parts of a replay's state that several modules change; `session.Session` holds them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.replayer.compare.findings import Findings
    from spanreplay.replayer.compare.unexercised import Unexercised
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.replayer.index import RecordingIndex
    from spanreplay.replayer.relocation import Relocation
    from spanreplay.replayer.resolve.hidden import Hidden
    from spanreplay.replayer.resolve.recorded_env import RecordedEnv
    from spanreplay.replayer.schedule.gate import OrderGate


class SharedState(Protocol):
    """The findings and the position of a replay."""

    recording: Recording
    index: RecordingIndex
    relocation: Relocation
    gate: OrderGate
    findings: Findings
    hidden: Hidden
    recorded_env: RecordedEnv
    counts: dict[str, int]
    resolved: int
    """How many calls of the unit, or of the start before it, have been resolved: the number of a call without one."""
    sockets_denied: list[str]
    live_tokens: int
    internal_error: str
    stopped: str
    unexercised: Unexercised
    is_stopped: bool
    is_forked: bool
    has_reached_frontier: bool
    _lock: threading.RLock

    @property
    def divergences(self) -> list[Divergence]:
        """The divergences so far."""

    def add_divergence(self, divergence: Divergence) -> None:
        """Add one divergence."""
