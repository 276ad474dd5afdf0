"""Connections that no other seam records (mail, FTP, any client): recorded, compared, and made by no replay."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from support.certificates import Certificates, make_certificates
from support.installing import install
from support.ports import free_port
from support.replaying import Workplace, assert_same
from support.tcp_server import answering, keeping

PASSWORD: Final = "correct horse battery"
HEAD: Final = f"""
import asyncio, os, smtplib, ssl, sys
from email.message import EmailMessage

port, trusted = int(os.environ["PORT"]), os.environ.get("CA")
context = ssl.create_default_context(cafile=trusted) if trusted else None
password = "{PASSWORD}"

def write(amount):
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "agent@acme.example", "jane@acme.example", "Your refund"
    message.set_content(f"We pay {{amount}} dollars.")
    return message
"""
MAIL: Final = f"""{HEAD}
with smtplib.SMTP("localhost", port) as server:
    print(server.ehlo())
    if context:
        print(server.starttls(context=context), server.sock.version(), server.sock.getpeercert()["subject"])
    print(server.login("agent", password))
    print(server.send_message(write(10)))
    try:
        server.sendmail("agent@acme.example", "nobody@acme.example", "hello")
    except smtplib.SMTPRecipientsRefused as exc:
        print(exc.recipients)
"""
MAIL_ASYNC: Final = f"""{HEAD}
import aiosmtplib

async def main():
    sent = aiosmtplib.send(
        write(10), hostname="localhost", port=port, username="agent", password=password, tls_context=context,
        start_tls=bool(context))
    print(await sent)

asyncio.run(main())
"""
LINES: Final = """
import asyncio, os, socket, ssl, threading

port, trusted = int(os.environ["PORT"]), os.environ.get("CA")
context = ssl.create_default_context(cafile=trusted) if trusted else None

def connect():
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(sock, server_hostname="localhost") if context else sock

with connect() as sock:
    print(sock.getpeername()[0], sock.getsockname()[0])
    with sock.makefile("rwb") as stream:
        stream.write(b"pay 10\\n")
        stream.flush()
        print(stream.readline())
    sock.sendall(b"a\\nb\\n")
    got = bytearray()
    while got.count(b"\\n") < 2:
        buffer = bytearray(100)
        got += buffer[:sock.recv_into(buffer)]
    print(got.count(b"\\n"), sock.recv(0) if not context else b"")
    sock.settimeout(0.05)
    try:
        sock.recv(10)
    except TimeoutError as exc:
        print("nothing came:", exc)

def listen():
    with connect() as sock:
        listening.set()
        sock.recv(10)

listening = threading.Event()
threading.Thread(target=listen, daemon=True).start()
listening.wait()

async def ask(number):
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None)
    writer.write(f"async {number}\\n".encode())
    await writer.drain()
    answer = await reader.readline()
    name = writer.get_extra_info("peername")[0]
    writer.close()
    await writer.wait_closed()
    return name, answer.endswith(b"\\n")

async def main():
    print(await asyncio.gather(*(ask(number) for number in range(3))))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None)
    writer.write(b"last\\n")
    print(len(await reader.readline()) > 0)
    try:
        await asyncio.wait_for(reader.readline(), 0.05)
    except (TimeoutError, asyncio.TimeoutError):
        print("nothing came")
    writer.close()

asyncio.run(main())
"""


@dataclass
class Mailbox:
    """A mail server and what it got."""

    port: int
    mails: list[bytes] = field(default_factory=list)


@pytest.fixture(params=["plain", "encrypted"])
def certificates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Certificates | None:
    """Certificates of the server, or None: once without encryption, once with it."""
    return make_certificates(tmp_path_factory.mktemp("certificates")) if request.param == "encrypted" else None


@pytest.fixture
def mailbox(certificates: Certificates | None) -> Iterator[Mailbox]:
    """A mail server that wants a login, and offers STARTTLS if there are certificates."""
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server_cert, certificates.server_key)
    found = Mailbox(0)

    class Handler:
        async def handle_RCPT(self, _: Any, __: Any, envelope: Any, address: str, ___: Any) -> str:
            if address.startswith("nobody"):
                return "550 no such user"
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, _: Any, __: Any, envelope: Any) -> str:
            found.mails.append(envelope.content)
            return "250 queued"

    controller = Controller(
        Handler(),
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=context,
        auth_require_tls=False,
        authenticator=lambda *_: AuthResult(success=True),
    )
    controller.start()
    found.port = controller.port
    yield found
    controller.stop()


def _environ(port: int, certificates: Certificates | None) -> dict[str, Any]:
    return {"PORT": str(port), **({"CA": str(certificates.ca)} if certificates else {})}


@pytest.mark.parametrize("program", [MAIL, MAIL_ASYNC], ids=["smtplib", "aiosmtplib"])
def test_n14_s57_a_mail_is_recorded_compared_and_never_sent_again(
    program: str, mailbox: Mailbox, certificates: Certificates | None, workplace: Workplace
) -> None:
    """The password is in nothing that is kept, and another amount in the mail is a difference."""
    agent = workplace.write("agent.py", program)
    environ = _environ(mailbox.port, certificates)
    recorded = workplace.record(agent, **environ)
    assert len(mailbox.mails) == 1
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    assert_same(workplace.replay(agent, **environ), recorded.stdout)
    kept = [p for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if PASSWORD.encode() in p.read_bytes() or b"10 dollars" in p.read_bytes()]
    workplace.write("agent.py", program.replace("write(10)", "write(99)"))
    changed = workplace.replay(agent, **environ)
    assert (changed.status, changed.causes()[0][0]) == (3, "changed_call"), changed.stderr
    assert changed.causes()[0][1].startswith("tool:socket.")
    assert len(mailbox.mails) == 1


def test_n14_s57_lines_over_sockets_and_event_loops_replay(
    certificates: Certificates | None, workplace: Workplace
) -> None:
    """Files, buffers, timeouts, threads that listen until the end, streams of asyncio beside one another."""
    agent = workplace.write("agent.py", LINES)
    with keeping(certificates) as (port, lines):
        environ = _environ(port, certificates)
        recorded = workplace.record(agent, **environ)
        assert len(lines) == 7
        assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
        assert_same(workplace.replay(agent, **environ), recorded.stdout)
        for before, after in (("pay 10", "pay 99"), ("async {number}", "async {number}!"), ("last", "other")):
            workplace.write("agent.py", LINES.replace(before, after))
            changed = workplace.replay(agent, **environ)
            assert (changed.status, changed.causes()[0][0]) == (3, "changed_call"), (before, changed.stderr)
        workplace.write("agent.py", LINES.replace("    writer.close()\n\nasyncio", '    writer.write(b"x")\n\nasyncio'))
        changed = workplace.replay(agent, **environ)
        assert (changed.status, changed.causes()) == (3, [("extra_call", "tool:socket.write")]), changed.stderr
        assert len(lines) == 7


REFUSED: Final = """
import asyncio, os, socket, ssl

port = int(os.environ["PORT"])
try:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
except OSError as exc:
    print(repr(exc))
with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
    try:
        ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
    except ssl.SSLCertVerificationError as exc:
        print(exc.verify_code, exc.verify_message)

async def main():
    for where, context in ((9, None), (port, ssl.create_default_context())):
        try:
            await asyncio.open_connection(
                "127.0.0.1", where, ssl=context, server_hostname="localhost" if context else None)
        except ssl.SSLCertVerificationError as exc:
            print(exc.verify_code, exc.verify_message)
        except OSError as exc:
            print(type(exc).__name__, exc.errno)

asyncio.run(main())
"""


def test_n14_refused_connections_and_certificates_come_back(tmp_path: Path, workplace: Workplace) -> None:
    """A server that does not listen, and one that is not trusted."""
    agent = workplace.write("agent.py", REFUSED)
    with keeping(make_certificates(tmp_path / "certificates")) as (port, _):
        recorded = workplace.record(agent, PORT=str(port))
    assert recorded.stdout.count("self-signed") + recorded.stdout.count("unable to get") == 2
    assert_same(workplace.replay(agent, PORT=str(port)), recorded.stdout)


BY_DESCRIPTOR: Final = {
    "os.read": "print(os.read(sock.fileno(), 1))",
    "detach": "print(os.read(sock.detach(), 1))",
    "ancillary": "print(sock.recvmsg(1, 100)[0])",
}


@pytest.mark.parametrize("way", BY_DESCRIPTOR)
def test_s57_n4_a_connection_that_is_used_by_its_descriptor_is_a_gap(way: str, workplace: Workplace) -> None:
    """Never identical, and never a divergence: the run says which connection it is."""
    agent = workplace.write(
        "agent.py",
        "import os, socket\nimport spanreplay\n"
        "@spanreplay.boundary('tool', name='quote', effect='read')\ndef quote(amount):\n    return amount * 2\n"
        "sock = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))\n"
        f"{BY_DESCRIPTOR[way]}\nprint(quote(1))\nsock.close()\n",
    )
    with answering(b"7", reads=False) as (port, _):
        workplace.record(agent, PORT=str(port))
        reasons = workplace.recording().completeness().reasons
        assert len(reasons) == 1, reasons
        assert f"to 127.0.0.1:{port}" in reasons[0]
        replayed = workplace.replay(agent, PORT=str(port))
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr


def test_s57_a_replay_without_the_key_names_what_it_lacks(
    certificates: Certificates | None, workplace: Workplace
) -> None:
    """What was received is sealed: without the redaction key there is nothing to serve, and the verdict says so."""
    agent = workplace.write("agent.py", LINES)
    with keeping(certificates) as (port, _):
        environ = _environ(port, certificates)
        workplace.record(agent, **environ)
        (workplace.path / ".spanreplay" / "redact.key").unlink()
        shutil.rmtree(workplace.path / "__pycache__", ignore_errors=True)
        replayed = workplace.replay(agent, **environ)
    assert replayed.status != 0
    assert "redact" in replayed.stderr


PROTOCOLS: Final = """
import asyncio, contextvars, os, tempfile

port, heard = int(os.environ["PORT"]), contextvars.ContextVar("heard", default=0)

class Plain(asyncio.Protocol):
    def __init__(self):
        loop = asyncio.get_running_loop()
        self.done, self.lost = loop.create_future(), loop.create_future()

    def connection_lost(self, exc):
        print("lost", exc)
        self.lost.set_result(None)  # a second time it would raise

    def connection_made(self, transport):
        heard.set(heard.get() + 1)
        self.transport = transport
        transport.write(b"pay 10\\n")

    def data_received(self, data):
        heard.set(heard.get() + 1)
        print(data, heard.get())
        if data.startswith(b"1"):
            self.transport.write(b"again\\n")
            return
        self.done.set_result(None)

class Buffered(asyncio.BufferedProtocol):
    def __init__(self):
        self.done, self.buffer, self.got = asyncio.get_running_loop().create_future(), bytearray(1), b""

    def get_buffer(self, hint):
        return self.buffer

    def buffer_updated(self, size):
        self.got += self.buffer[:size]
        if self.got.endswith(b"\\n"):
            print(self.got)
            self.done.set_result(None)

async def main():
    loop = asyncio.get_running_loop()
    plain, protocol = first = await loop.create_connection(Plain, "127.0.0.1", port)
    await protocol.done
    print(heard.get(), plain.get_protocol() is protocol)
    buffered, protocol = await loop.create_connection(Buffered, "127.0.0.1", port)
    with tempfile.TemporaryFile() as file:
        file.write(b"from a file\\n")
        file.seek(0)
        print(await loop.sendfile(buffered, file), file.tell())
    await protocol.done
    for transport in (plain, buffered):
        print(isinstance(transport, asyncio.transports._FlowControlMixin), transport.is_closing())
        transport.close()
        transport.close()
    await first[1].lost
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_u1_protocols_and_transports_are_what_a_loop_makes(workplace: Workplace) -> None:
    """Context variables of a protocol's callbacks, buffers of its own, files sent by the loop, a transport's class."""
    agent = workplace.write("agent.py", PROTOCOLS)
    with keeping() as (port, lines):
        environ = {**workplace.environ, "PORT": str(port)}
        plain = subprocess.run([sys.executable, agent], env=environ, capture_output=True, text=True, check=True)
        lines.clear()
        recorded = workplace.record(agent, PORT=str(port))
        assert recorded.stdout == plain.stdout
        assert_same(workplace.replay(agent, PORT=str(port)), recorded.stdout)
        workplace.write("agent.py", PROTOCOLS.replace("from a file", "from another"))
        changed = workplace.replay(agent, PORT=str(port))
        assert (changed.status, changed.causes()[0]) == (3, ("changed_call", "tool:socket.write")), changed.stderr
        assert lines == [b"pay 10\n", b"again\n", b"from a file\n"]


WAITING: Final = """
import os, select, selectors, socket, threading

port = int(os.environ["PORT"])
ours, theirs = socket.socketpair()
with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
    print(select.select([sock], [], [], 0.05)[0] == [sock])
    sock.sendall(b"pay 10\\n")
    ready = select.select([theirs, sock], [sock], [])
    print(ready[1] == [sock])
    while sock not in ready[0]:
        ready = select.select([theirs, sock], [], [])
    print(sock.recv(10))
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ, "answers")
        selector.register(theirs, selectors.EVENT_READ, "stop")
        print([key.data for key, _ in selector.select(0.05)])
        sock.sendall(b"again\\n")
        print([key.data for key, _ in selector.select()], sock.recv(10))
        threading.Thread(target=ours.send, args=(b"x",)).start()
        print([key.data for key, _ in selector.select()])

def listen():
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        listening.set()
        select.select([sock], [], [])

listening = threading.Event()
threading.Thread(target=listen, daemon=True).start()
listening.wait()
"""


def test_n14_s57_waiting_for_connections_replays(workplace: Workplace) -> None:
    """What was ready when, beside a socket of the program's own; a thread that waits until the end."""
    agent = workplace.write("agent.py", WAITING)
    with keeping() as (port, lines):
        recorded = workplace.record(agent, PORT=str(port))
        assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
        for _ in range(3):
            assert_same(workplace.replay(agent, PORT=str(port)), recorded.stdout)
        assert len(lines) == 2
    assert recorded.stdout.splitlines()[-1] == "['stop']"


NONCES: Final = """
import os, socket

def greet(port):
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(open("/proc/sys/kernel/random/uuid", "rb").read())
        return sock.recv(10)

def greet_with(port, words):
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(words)
        return sock.recv(10)
"""


def test_n2_what_a_library_draws_for_itself_is_no_divergence(tmp_path: Path) -> None:
    """Bytes that differ although nothing has changed leave the verdict open; those of a changed program don't."""
    site = tmp_path / "lib" / "site-packages"
    install(site, "nonces", {"nonces.py": NONCES})
    workplace = Workplace(tmp_path, {"PYTHONPATH": str(site)})
    agent = workplace.write("agent.py", "import os, nonces\nprint(nonces.greet(int(os.environ['PORT'])))\n")
    with answering(b"welcome", reads=True) as (port, asked):
        workplace.record(agent, PORT=str(port))
        replayed = workplace.replay(agent, PORT=str(port))
        assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
        assert "random values of its own" in replayed.verdict["reasons"][0]
        source = "import os, nonces\nprint(nonces.greet_with(int(os.environ['PORT']), b'pay 10'))\n"
        recorded = workplace.record(workplace.write("agent.py", source), PORT=str(port))
        assert_same(workplace.replay(agent, PORT=str(port)), recorded.stdout)
        workplace.write("agent.py", source.replace("10", "99"))
        changed = workplace.replay(agent, PORT=str(port))
        assert (changed.status, changed.causes()) == (3, [("changed_call", "tool:socket.sendall")]), changed.stderr
        assert len(asked) == 2


WRONG: Final = """
import asyncio, os, socket

WRONG = (
    "sock.recv(-1)", "sock.recv_into(b'12')", "sock.recv_into(bytearray(2), 3)", "sock.recv_into(bytearray(2), -1)",
    "sock.recvmsg_into([bytearray(2), b'12'])", "sock.recvmsg_into([1])", "sock.sendmsg([1])",
    "sock.sendmsg([b'1'], [(1,)])", "sock.send('text')", "sock.send(5)", "sock.sendall(5)", "sock.shutdown(7)",
)
with socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=30) as sock:
    for call in WRONG:
        try:
            print(call, eval(call))
        except Exception as exc:
            print(call, type(exc).__name__, exc)

async def main():
    loop = asyncio.get_running_loop()
    with socket.socket() as unconnected:
        try:
            await loop.create_connection(asyncio.Protocol, sock=unconnected, host="a")
        except ValueError as exc:
            print(exc)
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", int(os.environ["PORT"]))
    for wrong in (5, "text"):
        try:
            transport.write(wrong)
        except TypeError:
            print("refused", wrong)
    transport.close()

asyncio.run(main())
"""


def test_u1_wrong_arguments_raise_as_without_a_recorder(workplace: Workplace) -> None:
    """No call takes bytes from a connection and then fails, and none waits where it should raise."""
    agent = workplace.write("agent.py", WRONG)
    with keeping() as (port, _):
        environ = {**workplace.environ, "PORT": str(port)}
        plain = subprocess.run([sys.executable, agent], env=environ, capture_output=True, text=True, check=True)
        recorded = workplace.record(agent, PORT=str(port))
        assert recorded.stdout == plain.stdout
        assert_same(workplace.replay(agent, PORT=str(port)), recorded.stdout)
