"""One line of the verdict names what it doesn't cover; standard error is compared on request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spanreplay.model.errors import ConfigError
from spanreplay.replayer.resolve.directions import check_plan
from spanreplay.replayer.resolve.plan import Plan
from support.replaying import Workplace

KEY = "sk-ant-api03-" + "A1b2C3d4" * 11
AGENT = f"""
import logging, subprocess, sys, traceback, warnings
import httpx, spanreplay

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

@spanreplay.boundary("tool")
def place(shares):
    print("inside of the tool", file=sys.stderr)
    return shares

print("out", place(5))
print("beginning with {KEY}", file=sys.stderr)
logging.getLogger("shop").warning("sold %s", 5)
logging.getLogger("spanreplay.courier").warning("ours")
logging.getLogger("opentelemetry.sdk").warning("theirs")
warnings.warn("old way", stacklevel=1)
subprocess.run([sys.executable, "-c", "import sys; print('program', file=sys.stderr)"])
try:
    raise KeyError("gone")
except KeyError:
    traceback.print_exc()
"""


@pytest.fixture
def recorded(workplace: Workplace) -> Workplace:
    """A recorded agent that writes to standard error in every way."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    return workplace


def test_n14_standard_error_is_compared_where_that_is_asked_for(recorded: Workplace) -> None:
    """It is kept redacted, without our lines and the output of calls, and a changed line diverges."""
    kept = recorded.recording().root.manifest["stderr"]["text"]
    assert "sold 5" in kept
    assert "old way" in kept
    assert "KeyError: 'gone'" in kept
    assert not [each for each in (KEY, "ours", "theirs", "inside of the tool", "program") if each in kept]

    asked = ["--compare", "stderr"]
    same = recorded.replay("agent.py", options=asked)
    assert same.verdict["verdict"] == "identical", (same.verdict["divergences"], same.verdict["stderr"])
    assert "; standard output, standard error and exit status too" in same.stderr
    named = {each["what"] for each in same.verdict["not_compared"]}
    assert "stderr" not in named
    assert "stderr of programs and native code" in named

    recorded.write("agent.py", AGENT.replace("sold %s", "sold only %s"))
    other = recorded.replay("agent.py", options=asked)
    assert other.causes() == [("output_changed", "process:stderr")]
    assert "  stderr    differs: recorded" in other.stderr
    assert recorded.replay("agent.py").verdict["verdict"] == "identical"


def test_n14_an_identical_verdict_names_what_it_does_not_speak_for(recorded: Workplace) -> None:
    """One line of the report and a member of the JSON give the names and the reason for each."""
    replayed = recorded.replay("agent.py")
    line = "not compared: stderr, log files, variables of Python and of telemetry"
    assert line in replayed.stderr
    listed = {each["what"]: each for each in replayed.verdict["not_compared"]}
    assert ", ".join(listed) == line.partition(": ")[2]
    assert "OTEL_*" in listed["variables of Python and of telemetry"]["names"]
    assert all(each["why"] for each in listed.values())


def test_n14_what_the_recording_does_not_have_is_not_compared_silently(recorded: Workplace) -> None:
    """`--compare stderr` is refused for a recording without it, and so is any stream that can't be compared."""
    whole = recorded.recording()
    kept = {name: value for name, value in whole.root.manifest.items() if name != "stderr"}
    check_plan(Plan().compare("stderr"), whole)
    with pytest.raises(ConfigError, match="--compare stderr: the recording does not have it"):
        check_plan(Plan().compare("stderr"), replace(whole, root=replace(whole.root, manifest=kept)))
    with pytest.raises(ConfigError, match="'logs' is not one of stderr"):
        Plan().compare("logs")
