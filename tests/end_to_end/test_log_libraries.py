"""A logging library prints the time to standard output, and a replay prints the recorded time."""

from __future__ import annotations

from support.replaying import Workplace

LIBRARY = """
import datetime, sys, time


def info(text):
    print(time.strftime("%Y-%m-%d %H:%M:%S"), datetime.datetime.now().isoformat(), text)


def to_file(name, text):
    with open(name, "a") as log:
        log.write(f"{time.time_ns()} {text}\\n")
"""
AGENT = """
import structlog
import spanreplay


@spanreplay.boundary("tool", name="buy")
def buy(what):
    return f"bought {what}"


structlog.info("begins")
structlog.info(buy("apples"))
structlog.to_file("agent.log", "ends")
"""


def test_times_that_a_log_library_prints_are_recorded(workplace: Workplace) -> None:
    """Its printed lines are as recorded; its files stay logs, and a changed line diverges."""
    site = workplace.path / "site-packages"
    for folder, name, text in (
        ("structlog", "__init__.py", LIBRARY),
        ("structlog-26.1.0.dist-info", "METADATA", "Metadata-Version: 2.1\nName: structlog\nVersion: 26.1.0\n"),
        ("structlog-26.1.0.dist-info", "RECORD", "structlog/__init__.py,,\n"),
    ):
        (site / folder).mkdir(parents=True, exist_ok=True)
        (site / folder / name).write_text(text)
    workplace.environ["PYTHONPATH"] = str(site)
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py")
    replayed = workplace.replay("agent.py")
    assert replayed.verdict["verdict"] == "identical", replayed.verdict["stdout"]
    assert replayed.stdout == recorded.stdout
    assert "agent.log" not in workplace.recording().root.manifest.get("files", {})

    workplace.write("agent.py", AGENT.replace('"begins"', '"starts"'))
    assert workplace.replay("agent.py").causes() == [("output_changed", "process:stdout")]
