"""A process that is still starting is waited for while it makes progress, however busy the machine is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.call import CallRecord
from spanreplay.replayer.schedule import arrivals, stall_detector
from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.runtime.processes import ProcessGroup
from support.spool_tools import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell")


def _made(seq: int, end_seq: int) -> CallRecord:
    lane: dict[str, Any] = {"run_id": "0" * 32, "kind": "tool", "name": "t", "lane": "main", "index": seq}
    return CallRecord(seq=seq, end_seq=end_seq, key="", keyspec="", request="", outcome="ok", **lane)


def test_s68_a_process_that_takes_long_to_start_is_waited_for_while_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slowly starting process completes first, as recorded; one that makes no progress is given up as usual."""
    monkeypatch.setattr(stall_detector, "STALL_AWAITED_MS", 1_000)
    monkeypatch.setattr(arrivals, "STEP_MS", 50)
    gate = OrderGate([_made(1, 4), _made(2, 5)], lambda seq: False)
    process_group = ProcessGroup.make(0)
    starting = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        number = process_group.new_number()
        process_group.state_starting(number, True)
        process_group.state_pid(number, starting.pid)
        gate.share(process_group)
        waiting = threading.Thread(target=gate.wait_turn, args=(5,))
        waiting.start()
        wait_until(lambda: arrivals._read_spent_ms(starting.pid) >= 3_000, "the process to get on")
        assert (waiting.is_alive(), gate.skipped) == (True, [])
        starting.send_signal(signal.SIGSTOP)
        waiting.join(60)
        assert (waiting.is_alive(), gate.skipped) == (False, [4])
    finally:
        starting.kill()
        starting.wait()
        process_group.close()
