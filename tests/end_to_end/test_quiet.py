"""A recorded run writes to standard error exactly what a plain run writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.agents import without_instrumentors
from support.replaying import TIMEOUT_S, Workplace

STRANGER = """
import json, logging, warnings
from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

logger = logging.getLogger("stranger_telemetry")
logger.warning("an instrumentor is loaded")
warnings.warn("an instrumentor is old")

class StrangerInstrumentor(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ()

    def _instrument(self, **kwargs):
        real = json.dumps
        logger.error("an instrumentor looks around")

        def dumps(*args, **kwargs):
            logger.warning("a span is lost")
            warnings.warn("a span is slow")
            with trace.get_tracer("stranger").start_as_current_span("dumps") as span:
                span.set_attribute("args", object())
                return real(*args, **kwargs)

        json.dumps = dumps

    def _uninstrument(self, **kwargs):
        pass
"""
BROKEN = "raise ImportError('another Python is needed')\n"
METADATA = """Metadata-Version: 2.1
Name: stranger-telemetry
Version: 1.0
"""
ENTRY_POINTS = """[opentelemetry_instrumentor]
stranger = stranger_telemetry:StrangerInstrumentor
broken = stranger_broken:Instrumentor
"""
OLD_METADATA = """Metadata-Version: 2.1
Name: old-telemetry
Version: 1.0
Requires-Dist: click<1; extra == 'instruments'
Provides-Extra: instruments
"""
OLD_ENTRY_POINTS = "[opentelemetry_instrumentor]\nold = stranger_telemetry:StrangerInstrumentor\n"
AGENT = """
import json, logging, subprocess, warnings
subprocess.run(["true"])
logging.getLogger("app").warning("the agent's own")
warnings.warn("the agent's too")
print(json.dumps({"a": 1}))
"""
INSTRUMENTING = """
import subprocess
from openinference.instrumentation.openai import OpenAIInstrumentor
subprocess.run(["true"])
OpenAIInstrumentor().instrument()
print("once")
OpenAIInstrumentor().instrument()
"""
ASKING = (
    AGENT
    + """
from stranger_telemetry import StrangerInstrumentor
StrangerInstrumentor().instrument()
json.dumps({})
"""
)
RAISING = """
import subprocess
subprocess.run(["true"])
def fail():
    raise ValueError("the agent fails")
fail()
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A folder for an agent, in an environment with instrumentors that it doesn't request."""
    library = tmp_path / "lib" / "site-packages"
    for name, metadata, entry_points in (
        ("stranger_telemetry", METADATA, ENTRY_POINTS),
        ("old_telemetry", OLD_METADATA, OLD_ENTRY_POINTS),
    ):
        described = library / f"{name}-1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(metadata)
        (described / "entry_points.txt").write_text(entry_points)
    (library / "stranger_telemetry.py").write_text(STRANGER)
    (library / "stranger_broken.py").write_text(BROKEN)
    return Workplace(tmp_path, {"PYTHONPATH": str(library), **without_instrumentors("openai")})


def _run_plain(workplace: Workplace, agent: Path) -> subprocess.CompletedProcess[str]:
    command = [str(workplace.python), str(agent)]
    return subprocess.run(
        command,
        cwd=workplace.path,
        env=workplace.environ,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("source", [AGENT, INSTRUMENTING, RAISING], ids=["stranger", "instrumenting", "raising"])
def test_u1_standard_error_is_that_of_a_plain_run(workplace: Workplace, source: str) -> None:
    """Noisy, failing or duplicate instrumentors, and the agent's own end, leave the same output as without us."""
    agent = workplace.write("agent.py", source)
    plain = _run_plain(workplace, agent)
    recorded = workplace.record(agent, status=plain.returncode)
    assert plain.stderr
    assert (recorded.stdout, recorded.stderr) == (plain.stdout, plain.stderr)
    assert workplace.recording().calls


def test_u1_what_the_agent_instruments_itself_speaks(workplace: Workplace) -> None:
    """Once the agent instruments a library itself, the instrumentor's complaints are shown."""
    recorded = workplace.record(workplace.write("agent.py", ASKING))
    before, after = recorded.stderr.split("the agent's too", 1)
    assert "instrumentor" not in before
    assert after.count("a span is lost") == 1
    assert "already instrumented" not in after


SHOWN = """
import asyncio, re
from concurrent.futures import ThreadPoolExecutor

def show(*values):
    print(*(re.sub("0x[0-9a-f]+", "0x", repr(value)) for value in values))

async def work():
    await asyncio.sleep(0)

async def main():
    task = asyncio.create_task(work())
    show(task, type(task), type(task).__name__)
    await task
    show(task, asyncio.get_running_loop(), asyncio.get_running_loop().create_future())

asyncio.run(main())
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(int)
    future.result()
    show(future, type(future))
"""


def test_u1_tasks_and_futures_show_themselves_as_in_a_plain_run(workplace: Workplace) -> None:
    """Names of ours are in no log and in no message of the event loop."""
    workplace.write("agent.py", SHOWN)
    assert workplace.record("agent.py").stdout == workplace.run_plain("agent.py")
