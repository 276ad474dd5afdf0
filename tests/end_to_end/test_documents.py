"""Documents that the standard library builds hold times and random marks: a replay builds the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.replaying import Workplace

HEAD = """
import base64, io, os, sys, time
from pathlib import Path
import spanreplay

DATA = Path(os.environ["DATA"])

@spanreplay.boundary("tool", name="send")
def send(what):
    return len(what)
"""
MESSAGE = """
from email.message import EmailMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import formatdate, make_msgid

message = EmailMessage()
message["Subject"], message["Message-ID"], message["Date"] = "Invoice 4711", make_msgid(), formatdate()
message.set_content("Please find it attached.")
message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
print(send(message.as_string()))
parts = MIMEMultipart()
parts.attach(MIMEText("older code builds it from parts"))
print(send(parts.as_string()), parts["Content-Type"])
"""
ARCHIVES = """
import gzip, tarfile, zipfile

report = DATA / "report.txt"
report.write_text("all is well")
with zipfile.ZipFile(DATA / "report.zip", "w") as archive:
    archive.write(report, "report.txt")
    archive.writestr("note.txt", "made here")
with gzip.open(DATA / "report.gz", "wb") as packed:
    packed.write(b"all is well")
made = io.BytesIO()
with tarfile.open(fileobj=made, mode="w:gz") as archive:
    archive.add(report, "report.txt")
print(send(base64.b64encode(made.getvalue()).decode()))
print(send(base64.b64encode((DATA / "report.zip").read_bytes()).decode()))
"""
LOG = """
import logging

logging.basicConfig(filename=DATA / "agent.log", level=logging.INFO)
logging.info(send("hello"))
print((DATA / "agent.log").exists())
print("done")
"""
OWN_TIMES = """
report = DATA / "report.txt"
report.write_text("all is well")
print(send(str(report.stat().st_mtime_ns)), os.path.getmtime(report), report.stat().st_size)
print([entry.stat().st_mtime_ns for entry in os.scandir(DATA)])
report.unlink()
print(report.exists())
"""


@pytest.mark.parametrize("made", [MESSAGE, ARCHIVES, OWN_TIMES, LOG], ids=["message", "archives", "times", "log"])
def test_s55_what_is_made_for_the_agent_is_made_again(made: str, tmp_path: Path) -> None:
    """Message ids, boundaries, dates, times in archives and the agent's own file times are the same in the replay."""
    data = tmp_path / "data"
    data.mkdir()
    workplace = Workplace(tmp_path, {"DATA": str(data)})
    code = tmp_path / "code"
    code.mkdir()
    agent = workplace.write("code/agent.py", HEAD + made)
    recorded = workplace.record(agent)
    assert len(recorded.stdout.splitlines()) >= 2
    data.rename(tmp_path / "gone")
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert not data.exists()


def test_s28_a_changed_message_is_still_found(tmp_path: Path) -> None:
    """Only the marks come from the recording: different text in the message is a changed call."""
    workplace = Workplace(tmp_path, {"DATA": str(tmp_path)})
    agent = workplace.write("agent.py", HEAD + MESSAGE)
    workplace.record(agent)
    agent.write_text(agent.read_text(encoding="utf-8").replace("Invoice 4711", "Invoice 4712"), encoding="utf-8")
    assert workplace.replay(agent).causes() == [("changed_call", "tool:send")]
