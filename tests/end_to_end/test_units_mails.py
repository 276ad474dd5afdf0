"""Mails about errors that a library's log sends, and mails of a library's own view, in threads of a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from aiosmtpd.controller import Controller

from support.installing import install
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import FLASK, path_of, prepare, serve

APP: Final = f"""{FLASK}
import logging, logging.handlers, os
import mailing

to = ("127.0.0.1", int(os.environ["MAIL_PORT"]))
app.logger.addHandler(logging.handlers.SMTPHandler(to, "app@example.com", ["admin@example.com"], "It failed"))
app.add_url_rule("/reset", view_func=mailing.reset)

@app.get("/fail")
def fail():
    ask("why")
    raise ValueError("none")
"""
MAILING: Final = """
import os, smtplib

def reset():
    with smtplib.SMTP("127.0.0.1", int(os.environ["MAIL_PORT"])) as server:
        server.sendmail("app@example.com", ["user@example.com"], "Subject: Reset\\r\\n\\r\\nyour password")
    return "sent"
"""
WAITRESS: Final = ("-m", "waitress")
AT: Final = "--listen 127.0.0.1:{port} app:app"


@contextmanager
def receiving() -> Iterator[tuple[int, list[str]]]:
    """A mail server: its port, and the receivers of the mails that it got."""
    receivers: list[str] = []

    class Handler:
        async def handle_DATA(self, server: object, session: object, envelope: object) -> str:
            receivers.extend(envelope.rcpt_tos)  # type: ignore[attr-defined]  # aiosmtpd's
            return "250 OK"

    controller = Controller(Handler(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield controller.port, receivers
    finally:
        controller.stop()


@pytest.mark.parametrize(("path", "receiver"), [("/fail", "admin@example.com"), ("/reset", "user@example.com")])
def test_p2_mails_of_libraries_in_a_request_leave_it_complete(
    path: str, receiver: str, tmp_path: Path, provider: Provider
) -> None:
    """The request replays without a mail server; a mail of its own is a call, one about an error a report."""
    place = prepare(tmp_path, provider, APP)
    install(tmp_path / "site-packages", "mailing", {"mailing/__init__.py": MAILING})
    place.environ["PYTHONPATH"] = str(tmp_path / "site-packages")
    with receiving() as (port, receivers):
        place.environ["MAIL_PORT"] = str(port)
        with serve(place, command=WAITRESS, at=AT) as server:
            httpx.get(server.url + path, timeout=TIMEOUT_S)
            server.await_ends()
            server.stop()
        assert receivers == [receiver]
        (unit,) = server.units()
        assert path_of(unit) == path
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert ("tool:socket.connect" in [call.boundary for call in unit.calls]) == (path == "/reset")
        replayed = place.replay(*WAITRESS, *AT.format(port=1).split(), source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert receivers == [receiver]


PASSED_ON: Final = """
import logging, logging.handlers, os, queue, subprocess

records = queue.Queue()
to = ("127.0.0.1", int(os.environ["MAIL_PORT"]))
mails = logging.handlers.SMTPHandler(to, "app@example.com", ["admin@example.com"], "It failed")
listener = logging.handlers.QueueListener(records, mails)
listener.start()
logging.getLogger("agent").addHandler(logging.handlers.QueueHandler(records))
subprocess.run(["true"])
logging.getLogger("agent").error("pay 10")
listener.stop()
"""


def test_n14_a_mail_that_a_thread_sends_for_a_log_of_the_agent_is_no_report(workplace: Workplace) -> None:
    """Nobody there can tell whose record it is: a replay does not leave it out in silence."""
    agent = workplace.write("agent.py", PASSED_ON)
    with receiving() as (port, receivers):
        workplace.environ["MAIL_PORT"] = str(port)
        workplace.record(agent)
        assert receivers == ["admin@example.com"]
        reasons = workplace.recording().completeness().reasons
        assert any(f"127.0.0.1:{port}" in reason for reason in reasons), reasons
        agent.write_text(PASSED_ON.replace("pay 10", "pay 99"), encoding="utf-8")
        assert workplace.replay(agent).verdict["verdict"] != "identical"
        assert receivers == ["admin@example.com"]
