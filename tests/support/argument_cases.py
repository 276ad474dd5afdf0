"""For each function with an outside effect: a call of it, and two values for each of its arguments.

A call is Python with its arguments in braces. The first values are recorded; each replay changes one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HEAD: Final = """
import asyncio, contextlib, os, pathlib, shutil, signal, socket, sqlite3, subprocess, syslog

def agent():
    for name in "ab": pathlib.Path(name).write_text(name)
    for name in "de": os.mkdir(name); pathlib.Path(name, "a").write_text("1"); pathlib.Path(name, "b").write_text("2")
    os.symlink("a", "l")
"""
Values = tuple[str, str]


@dataclass(frozen=True)
class Case:
    """One call; `setup` runs before it, `behind` after it."""

    call: str
    arguments: dict[str, Values] = field(default_factory=dict)
    setup: str = ""
    behind: str = ""
    since: tuple[int, int] = (3, 10)
    """The first Python version that has it."""

    def write(self, changed: str = "") -> str:
        """Return the agent's source with the first values, except for the changed argument."""
        call = self.call
        for name, (first, other) in self.arguments.items():
            call = call.replace("{" + name + "}", other if name == changed else first)
        lines = [*self.setup.splitlines(), *call.splitlines(), *self.behind.splitlines()]
        return HEAD + "".join(f"    {line}\n" for line in lines)


PATH: Final = ("'a'", "'b'")
FOLDERS: Final = "d, e = (os.open(n, os.O_RDONLY) for n in 'de')"
DIR_FD: Final = ("d", "e")
OPEN: Final = ("a.fileno()", "b.fileno()")
LINKS: Final = ("True", "False")
MODE: Final = ("0o600", "0o666")


def _at(call: str, setup: str = "", **arguments: Values) -> Case:
    return Case(
        f"with contextlib.suppress(OSError): {call}",
        arguments,
        f"{FOLDERS}\n{setup}".strip(),
        "os.close(d); os.close(e)",
    )


def _of_process(name: str, /, **arguments: Values) -> Case:
    shown = ", ".join("{" + each + "}" for each in arguments)
    return Case(f"with contextlib.suppress(OSError): os.{name}({shown})", arguments)


OS: Final[dict[str, Case]] = {
    "chmod": _at(
        "os.chmod({path}, {mode}, dir_fd={dir_fd}, follow_symlinks={follow_symlinks})",
        path=PATH, mode=MODE, dir_fd=DIR_FD, follow_symlinks=LINKS,
    ),
    "chown": _at(
        "os.chown({path}, {uid}, {gid}, dir_fd={dir_fd}, follow_symlinks={follow_symlinks})",
        path=PATH, uid=("os.getuid()", "12"), gid=("-1", "12"), dir_fd=DIR_FD, follow_symlinks=LINKS,
    ),
    "lchown": _at("os.lchown({path}, {uid}, {gid})", path=PATH, uid=("-1", "12"), gid=("-1", "12")),
    "utime": _at(
        "os.utime({path}, {times}, dir_fd={dir_fd}, follow_symlinks={follow_symlinks})",
        path=PATH, times=("(1, 2)", "(1, 3)"), dir_fd=DIR_FD, follow_symlinks=LINKS,
    ),
    "utime ": _at("os.utime({path}, ns={ns})", path=PATH, ns=("(1, 2)", "(1, 3)")),
    "mkdir": _at("os.mkdir({path}, {mode}, dir_fd={dir_fd})",
                 path=("'x'", "'y'"), mode=("0o700", "0o777"), dir_fd=DIR_FD),
    "rmdir": _at("os.rmdir({path}, dir_fd={dir_fd})", "os.mkdir('d/x'); os.mkdir('e/x'); os.mkdir('d/y')",
                 path=("'x'", "'y'"), dir_fd=DIR_FD),
    "remove": _at("os.remove({path}, dir_fd={dir_fd})", path=PATH, dir_fd=DIR_FD),
    "unlink": _at("os.unlink({path}, dir_fd={dir_fd})", path=PATH, dir_fd=DIR_FD),
    "rename": _at(
        "os.rename({src}, {dst}, src_dir_fd={src_dir_fd}, dst_dir_fd={dst_dir_fd})",
        src=PATH, dst=("'x'", "'y'"), src_dir_fd=DIR_FD, dst_dir_fd=DIR_FD,
    ),
    "replace": _at(
        "os.replace({src}, {dst}, src_dir_fd={src_dir_fd}, dst_dir_fd={dst_dir_fd})",
        src=PATH, dst=("'x'", "'y'"), src_dir_fd=DIR_FD, dst_dir_fd=DIR_FD,
    ),
    "link": _at(
        "os.link({src}, {dst}, src_dir_fd={src_dir_fd}, dst_dir_fd={dst_dir_fd}, follow_symlinks={follow_symlinks})",
        src=PATH, dst=("'x'", "'y'"), src_dir_fd=DIR_FD, dst_dir_fd=DIR_FD, follow_symlinks=LINKS,
    ),
    "symlink": _at("os.symlink({src}, {dst}, dir_fd={dir_fd})", src=PATH, dst=("'x'", "'y'"), dir_fd=DIR_FD),
    "mkfifo": _at("os.mkfifo({path}, {mode}, dir_fd={dir_fd})", path=("'x'", "'y'"), mode=MODE, dir_fd=DIR_FD),
    "mknod": _at("os.mknod({path}, {mode}, {device}, dir_fd={dir_fd})",
                 path=("'x'", "'y'"), mode=("0o100600", "0o100666"),
                 device=("0", "1"), dir_fd=DIR_FD),
    "truncate": _at("os.truncate({path}, {length})", path=PATH, length=("0", "5")),
    "setxattr": _at(
        "os.setxattr({path}, {attribute}, {value}, {flags}, follow_symlinks={follow_symlinks})",
        path=PATH, attribute=("'user.a'", "'user.b'"), value=("b'1'", "b'2'"), flags=("0", "os.XATTR_CREATE"),
        follow_symlinks=LINKS,
    ),
    "removexattr": _at(
        "os.removexattr({path}, {attribute}, follow_symlinks={follow_symlinks})",
        path=PATH, attribute=("'user.a'", "'user.b'"), follow_symlinks=LINKS,
    ),
    "fchmod": Case("os.fchmod({fd}, {mode})", {"fd": OPEN, "mode": MODE},
                   "a, b = open('a', 'a'), open('b', 'a')", "a.close(); b.close()"),
    "fchown": Case("os.fchown({fd}, {uid}, {gid})", {"fd": OPEN, "uid": ("-1", "12"), "gid": ("-1", "12")},
                   "a, b = open('a', 'a'), open('b', 'a')", "a.close(); b.close()"),
    "ftruncate": Case("os.ftruncate({fd}, {length})", {"fd": OPEN, "length": ("0", "5")},
                      "a, b = open('a', 'a'), open('b', 'a')", "a.close(); b.close()"),
    "open": _at("os.close(os.open({path}, {flags}, {mode}, dir_fd={dir_fd}))",
                path=("'x'", "'y'"), mode=MODE, dir_fd=DIR_FD,
                flags=("os.O_CREAT | os.O_WRONLY", "os.O_CREAT | os.O_EXCL | os.O_WRONLY")),
    "kill": _of_process("kill", pid=("os.getppid()", "0"), signal=("0", "signal.SIGCONT")),
    "killpg": _of_process("killpg", pgid=("os.getpgid(os.getppid())", "0"), signal=("0", "signal.SIGCONT")),
    "system": _of_process("system", command=("'true'", "'false'")),
    "chdir": _of_process("chdir", path=("'d'", "'e'")),
    "fchdir": _at("os.fchdir({fd})", fd=DIR_FD),
    "umask": _of_process("umask", mask=("0o022", "0o000")),
    "nice": _of_process("nice", increment=("0", "1")),
    "setpriority": _of_process("setpriority", which=("0", "2"), who=("0", "1"), priority=("0", "1")),
    "setuid": _of_process("setuid", uid=("os.getuid()", "12")),
    "seteuid": _of_process("seteuid", euid=("os.getuid()", "12")),
    "setgid": _of_process("setgid", gid=("os.getgid()", "12")),
    "setegid": _of_process("setegid", egid=("os.getgid()", "12")),
    "setgroups": _of_process("setgroups", groups=("os.getgroups()", "[12]")),
    "initgroups": _of_process("initgroups", username=("'root'", "'nobody'"), gid=("os.getgid()", "12")),
    "setreuid": _of_process("setreuid", ruid=("-1", "12"), euid=("-1", "12")),
    "setregid": _of_process("setregid", rgid=("-1", "12"), egid=("-1", "12")),
    "setresuid": _of_process("setresuid", ruid=("-1", "12"), euid=("-1", "12"), suid=("-1", "12")),
    "setresgid": _of_process("setresgid", rgid=("-1", "12"), egid=("-1", "12"), sgid=("-1", "12")),
    "setpgid": _of_process("setpgid", pid=("0", "1"), pgrp=("os.getpgid(0)", "1")),
    "sched_setaffinity": _of_process("sched_setaffinity", pid=("0", "1"), mask=("os.sched_getaffinity(0)", "{99}")),
    "sched_setparam": _of_process("sched_setparam", pid=("0", "1"), param=("os.sched_param(0)", "os.sched_param(1)")),
    "sched_setscheduler": _of_process(
        "sched_setscheduler", pid=("0", "1"), policy=("os.SCHED_OTHER", "os.SCHED_BATCH"),
        param=("os.sched_param(0)", "os.sched_param(1)"),
    ),
    "unshare": _of_process("unshare", flags=("0", "1")),
    "setns": _of_process("setns", fd=("998", "999"), nstype=("0", "1")),
    "putenv": _of_process("putenv", name=("'EFFECT'", "'OTHER'"), value=("'1'", "'2'")),
    "unsetenv": _of_process("unsetenv", name=("'EFFECT'", "'OTHER'")),
    "chroot": _of_process("chroot", path=("'nowhere'", "'nothere'")),
}  # fmt: skip
FILES: Final = "a, b, o, p = open('a'), open('b'), open('o', 'w'), open('p', 'w')"
CLOSED: Final = "for each in (a, b, o, p): each.close()"
PIPE: Final = "subprocess.DEVNULL"
OPTIONS: Final[dict[str, Values]] = {
    "executable": ("None", "'/bin/false'"), "stdin": ("a", "b"), "stdout": (PIPE, "o"), "stderr": ("o", "p"),
    "preexec_fn": ("None", "os.getpid"), "close_fds": ("True", "False"), "shell": ("False", "True"),
    "cwd": ("'d'", "'e'"), "env": ("None", "{'A': '1'}"), "restore_signals": ("True", "False"),
    "start_new_session": ("False", "True"), "process_group": ("None", "0"), "pass_fds": ("()", "(a.fileno(),)"),
    "user": ("None", "12"), "group": ("None", "12"), "extra_groups": ("None", "[12]"), "umask": ("-1", "0"),
}  # fmt: skip


def _option(name: str) -> Case:
    fixed = "" if name == "stdout" else f", stdout={PIPE}"
    call = "subprocess.Popen(['true', 'x'], " + name + "={" + name + "}" + fixed + ").wait()"
    return Case(call, {name: OPTIONS[name]}, FILES, CLOSED)


def _await(call: str, **arguments: Values) -> Case:
    lines = "".join(f"    {line}\n" for line in call.splitlines())
    return Case(f"async def main():\n{lines}asyncio.run(main())", arguments, FILES, CLOSED)


def _signal(what: str, **arguments: Values) -> Case:
    start = "p = await asyncio.create_subprocess_exec('sleep', '60')"
    return _await(f"{start}\np.{what}\nawait p.wait()", **arguments)


def _exec(call: str, **arguments: Values) -> Case:
    return _await(f"p = await asyncio.create_subprocess_{call}\nawait p.wait()", **arguments)


CAT: Final = "p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)"
OUTPUTS: Final[dict[str, Values]] = {"stdin": ("a", "b"), "stdout": (PIPE, "o"), "stderr": ("o", "p")}
_SHOWN: Final = ", ".join(f"{name}={{{name}}}" for name in OUTPUTS)
UDP: Final = "s = socket.socket(type=socket.SOCK_DGRAM)"
PAIR: Final = f"{UDP}; s.bind(('127.0.0.1', 0)); s.setblocking(False)"
ADDRESS: Final = ("('127.0.0.1', 9)", "('127.0.0.2', 9)")
SENT: Final = ("b'pay 10'", "b'pay 99'")
FLAGS: Final = ("0", "socket.MSG_DONTWAIT")


def _udp(call: str, setup: str = UDP, **arguments: Values) -> Case:
    return Case(f"with contextlib.suppress(OSError): {call}", arguments, setup, "s.close()")


def _endpoint(**arguments: Values) -> Case:
    given = ", ".join(f"{name}={{{name}}}" for name in arguments)
    return Case(
        f"async def main():\n    loop = asyncio.get_running_loop()\n    with contextlib.suppress(OSError):\n"
        f"        t, p = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, {given})\n        t.close()\n"
        "asyncio.run(main())",
        arguments,
    )


SOCKETS: Final[tuple[tuple[str, Case], ...]] = (
    ("connect", _udp("s.connect({address}); s.close()", address=ADDRESS)),
    ("connect_ex", _udp("s.connect_ex({address})", address=ADDRESS)),
    ("bind", _udp("s.bind({address})", address=("('127.0.0.1', 0)", "('127.0.0.2', 0)"))),
    ("send", _udp("s.send({data}, {flags})", f"{UDP}; s.connect(('127.0.0.1', 9))", data=SENT, flags=FLAGS)),
    ("sendall", _udp("s.sendall({data}, {flags})", f"{UDP}; s.connect(('127.0.0.1', 9))", data=SENT, flags=FLAGS)),
    ("sendto", _udp("s.sendto({data}, {flags}, {address})", data=SENT, flags=FLAGS, address=ADDRESS)),
    ("sendmsg", _udp(
        "s.sendmsg({buffers}, {ancdata}, {flags}, {address})", buffers=("[b'pay', b' 10']", "[b'pay', b' 99']"),
        ancdata=("[]", "[(socket.SOL_IP, socket.IP_TTL, bytes([9, 0, 0, 0]))]"), flags=FLAGS, address=ADDRESS)),
    ("recv", _udp("s.recv({bufsize}, {flags})", PAIR, bufsize=("8", "9"), flags=FLAGS)),
    ("recvfrom", _udp("s.recvfrom({bufsize}, {flags})", PAIR, bufsize=("8", "9"), flags=FLAGS)),
    ("recv_into", _udp("s.recv_into(bytearray(9), {nbytes}, {flags})", PAIR, nbytes=("8", "9"), flags=FLAGS)),
    ("recvfrom_into", _udp("s.recvfrom_into(bytearray(9), {nbytes}, {flags})", PAIR, nbytes=("8", "9"), flags=FLAGS)),
    ("recvmsg", _udp("s.recvmsg({bufsize}, {ancbufsize}, {flags})", PAIR, bufsize=("8", "9"), ancbufsize=("0", "9"),
                     flags=FLAGS)),
    ("recvmsg_into", _udp("s.recvmsg_into([bytearray(9)], {ancbufsize}, {flags})", PAIR, ancbufsize=("0", "9"),
                          flags=FLAGS)),
)  # fmt: skip


LISTENING: Final = (
    "import _socket, ssl; k = _socket.socket(_socket.AF_UNIX); k.bind('k') if not os.path.lexists('k') else None; "
    "k.listen(9); s = socket.socket(socket.AF_UNIX); s.settimeout(0.01); s.connect('k')"
)
"""A server below our patches, which never answers."""
ENCRYPTED: Final = (
    f"{LISTENING}; c = ssl._create_unverified_context(); t = c.wrap_socket(s, do_handshake_on_connect=False)"
)
HOSTS: Final = ("'127.0.0.1'", "'127.0.0.2'")
NAMES: Final = ("'a.example'", "'b.example'")
TLS: Final = ("None", "ssl._create_unverified_context()")


def _stream(call: str, setup: str = LISTENING, **arguments: Values) -> Case:
    return Case(f"with contextlib.suppress(OSError, ValueError): {call}", arguments, setup, "s.close(); k.close()")


def _encrypted(call: str, **arguments: Values) -> Case:
    return Case(f"with contextlib.suppress(OSError, ValueError): {call}", arguments, ENCRYPTED, "t.close(); k.close()")


def _connection(call: str, fixed: str = "", **arguments: Values) -> Case:
    given = ", ".join((*(f"{name}={{{name}}}" for name in arguments), fixed))
    return Case(
        f"import ssl\nasync def main():\n    loop = asyncio.get_running_loop()\n"
        f"    with contextlib.suppress(OSError, ValueError):\n        await loop.{call}(asyncio.Protocol, {given})\n"
        "asyncio.run(main())",
        arguments,
    )


STARTING_TLS: Final = """
import _socket, ssl
k = _socket.socket(_socket.AF_UNIX)
if not os.path.lexists("k"): k.bind("k")
k.listen(9)
async def main():
    loop, context = asyncio.get_running_loop(), ssl._create_unverified_context()
    t, p = await loop.create_unix_connection(asyncio.Protocol, "k")
    with contextlib.suppress(OSError):
        await loop.start_tls(t, p, context, server_hostname={server_hostname}, ssl_handshake_timeout=0.01)
    t.abort()
asyncio.run(main())
k.close()
"""
CONNECTIONS: Final[tuple[tuple[str, Case], ...]] = (
    ("socket.socket.shutdown", _stream("s.shutdown({how})", how=("0", "1"))),
    ("socket.socket.send", _stream("s.send({data})", data=SENT)),
    ("socket.socket.sendall", _stream("s.sendall({data})", data=SENT)),
    ("socket.socket.sendmsg", _stream("s.sendmsg({buffers})", buffers=("[b'pay', b' 10']", "[b'pay', b' 99']"))),
    ("socket.socket.sendfile", Case(
        "with open({file}, 'rb') as f, contextlib.suppress(OSError): s.sendfile(f, {offset}, {count})",
        {"file": ("'f'", "'g'"), "offset": ("0", "1"), "count": ("None", "1")},
        f"pathlib.Path('f').write_text('123'); pathlib.Path('g').write_text('456')\n{LISTENING}",
        "s.close(); k.close()")),
    ("select.select", _stream(
        "select.select({rlist}, {wlist}, {xlist}, 0)", f"import select\n{LISTENING}", rlist=("[s]", "[]"),
        wlist=("[s]", "[]"), xlist=("[s]", "[]"))),
    ("ssl.SSLContext.wrap_socket", _stream(
        "ssl._create_unverified_context().wrap_socket(s, server_hostname={server_hostname})", server_hostname=NAMES)),
    ("ssl.SSLSocket.read", _encrypted("t.read({len})", len=("8", "9"))),
    ("ssl.SSLSocket.write", _encrypted("t.write({data})", data=SENT)),
    ("ssl.SSLSocket.send", _encrypted("t.send({data})", data=SENT)),
    ("ssl.SSLSocket.getpeercert", _encrypted("t.getpeercert({binary_form})", binary_form=("False", "True"))),
    ("ssl.SSLSocket.get_channel_binding", _encrypted(
        "t.get_channel_binding({cb_type})", cb_type=("'tls-unique'", "'other'"))),
    ("asyncio.base_events.BaseEventLoop.create_connection", _connection(
        "create_connection", host=HOSTS, port=("9", "19"), family=("0", "socket.AF_INET"), proto=("0", "6"),
        flags=("0", "socket.AI_NUMERICHOST"), local_addr=("None", "('127.0.0.1', 0)"), ssl=TLS)),
    ("asyncio.base_events.BaseEventLoop.create_connection", _connection(
        "create_connection", "host='127.0.0.1', port=9, ssl=True", server_hostname=NAMES)),
    ("asyncio.base_events.BaseEventLoop.create_unix_connection", _connection(
        "create_unix_connection", "ssl=True", path=("'x'", "'y'"), server_hostname=NAMES)),
    ("asyncio.base_events.BaseEventLoop.create_unix_connection", _connection(
        "create_unix_connection", path=("'x'", "'y'"), ssl=TLS)),
    ("asyncio.base_events.BaseEventLoop.start_tls", Case(STARTING_TLS, {"server_hostname": NAMES})),
)  # fmt: skip


def _look_up(call: str, **arguments: Values) -> Case:
    """Return a call that needs the network; tests deny it, and the refusal is recorded."""
    return Case(f"with contextlib.suppress(BaseException): {call}", arguments)


LOOKED_UP: Final[tuple[tuple[str, Case], ...]] = (
    ("getaddrinfo", _look_up(
        "socket.getaddrinfo({host}, {port}, {family}, {type}, {proto}, {flags})", host=("'a.invalid'", "'b.invalid'"),
        port=("1", "2"), family=("0", "socket.AF_INET"), type=("0", "socket.SOCK_STREAM"), proto=("0", "6"),
        flags=("0", "socket.AI_PASSIVE"))),
    ("gethostbyname", _look_up("socket.gethostbyname({hostname})", hostname=("'a.invalid'", "'b.invalid'"))),
    ("gethostbyname_ex", _look_up("socket.gethostbyname_ex({hostname})", hostname=("'a.invalid'", "'b.invalid'"))),
    ("gethostbyaddr", _look_up("socket.gethostbyaddr({ip_address})", ip_address=("'10.0.0.1'", "'10.0.0.2'"))),
    ("getnameinfo", _look_up("socket.getnameinfo({sockaddr}, {flags})", sockaddr=ADDRESS,
                             flags=("socket.NI_NUMERICHOST", "socket.NI_NUMERICHOST | socket.NI_NUMERICSERV"))),
)  # fmt: skip
CASES: Final[tuple[tuple[str, Case], ...]] = (
    *((f"os.{name.strip()}", case) for name, case in OS.items()),
    ("shutil.rmtree", Case("shutil.rmtree({path})", {"path": ("'d'", "'e'")})),
    ("shutil.rmtree", Case(f"{FOLDERS}\nshutil.rmtree('x', dir_fd={{dir_fd}})\nos.close(d); os.close(e)",
                           {"dir_fd": DIR_FD}, "os.mkdir('d/x'); os.mkdir('e/x')", since=(3, 11))),
    ("builtins.open", Case("with open({file}, 'w', opener={opener}) as f: f.write('1')", {
        "file": ("'x'", "'y'"), "opener": ("None", "lambda path, flags: os.open(path, flags, 0o600)")})),
    ("builtins.open", Case("with open('x', 'w') as f: f.write({content})", {"content": ("'1'", "'2'")})),
    ("builtins.open", Case("open('x', 'w', opener=lambda p, f: os.open(p, f, {mode})).close()",
                           {"mode": ("0o600", "0o666")})),
    ("syslog.syslog", Case("syslog.syslog({priority}, {message})", {
        "priority": ("syslog.LOG_INFO", "syslog.LOG_DEBUG"), "message": ("'1'", "'2'")})),
    ("syslog.openlog", Case("syslog.openlog({ident}, {logoption}, {facility})", {
        "ident": ("'1'", "'2'"), "logoption": ("0", "1"), "facility": ("8", "16")})),
    ("syslog.setlogmask", Case("syslog.setlogmask({maskpri})", {"maskpri": ("255", "1")})),
    ("subprocess.Popen.__init__", Case("subprocess.Popen({args}).wait()", {
        "args": ("['true', '1']", "['true', '2']")})),
    *(("subprocess.Popen.__init__", _option(name)) for name in OPTIONS),
    ("subprocess.Popen.communicate", Case(f"{CAT}\np.communicate({{input}})", {"input": ("b'1'", "b'2'")})),
    ("subprocess.Popen.communicate", Case(
        f"{CAT}\np.stdin.write({{written}}); p.stdin.close(); p.stdout.close(); p.wait()",
        {"written": ("b'1'", "b'2'")})),
    ("subprocess.Popen.send_signal", Case(
        "p = subprocess.Popen(['sleep', '60'])\np.send_signal({sig})\np.wait()", {"sig": ("15", "9")})),
    ("asyncio.base_events.BaseEventLoop.subprocess_exec", _exec(
        f"exec({{program}}, {{args}}, {{kwargs}}, {_SHOWN})", program=("'true'", "'false'"), args=("'1'", "'2'"),
        kwargs=("cwd='d'", "cwd='e'"), **OUTPUTS)),
    ("asyncio.base_events.BaseEventLoop.subprocess_shell", _exec(
        f"shell({{cmd}}, {{kwargs}}, {_SHOWN})", cmd=("'true'", "'false'"), kwargs=("umask=-1", "umask=0"), **OUTPUTS)),
    ("asyncio.create_subprocess_exec", _exec(
        f"exec({{program}}, {{args}}, {{kwds}}, {_SHOWN})", program=("'true'", "'false'"), args=("'1'", "'2'"),
        kwds=("cwd='d'", "cwd='e'"), **OUTPUTS)),
    ("asyncio.create_subprocess_shell", _exec(
        f"shell({{cmd}}, {{kwds}}, {_SHOWN})", cmd=("'true'", "'false'"), kwds=("umask=-1", "umask=0"), **OUTPUTS)),
    ("asyncio.base_events.BaseEventLoop.subprocess_exec", _await(
        "p = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)\np.stdin.write({written})\n"
        "p.stdin.writelines([{more}])\nawait p.stdin.drain()\np.stdin.close()\nawait p.stdin.wait_closed()\n"
        "await p.wait()",
        written=("b'1'", "b'2'"), more=("b'1'", "b'2'"))),
    ("asyncio.base_events.BaseEventLoop.subprocess_exec", _await(
        "p = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)\nawait p.communicate({input})",
        input=("b'1'", "b'2'"))),
    ("asyncio.subprocess.Process.send_signal", _signal("send_signal({signal})", signal=("15", "9"))),
    ("asyncio.subprocess.Process.terminate", _signal("{terminate}()", terminate=("terminate", "kill"))),
    *((f"socket.socket.{name}", case) for name, case in SOCKETS),
    *((f"socket.{name}", case) for name, case in LOOKED_UP),
    *CONNECTIONS,
    ("asyncio.base_events.BaseEventLoop.create_datagram_endpoint", _endpoint(
        local_addr=("('127.0.0.1', 0)", "('127.0.0.2', 0)"), remote_addr=("('127.0.0.1', 9)", "('127.0.0.1', 19)"),
        family=("0", "socket.AF_INET"), proto=("0", "17"), flags=("0", "socket.AI_NUMERICHOST"),
        reuse_port=("None", "True"), allow_broadcast=("None", "True"))),
    ("sqlite3.connect", Case(
        "sqlite3.connect({database}, isolation_level={isolation_level}, uri={uri}).close()",
        {"database": ("'x.db'", "'y.db'"), "isolation_level": ("''", "None"), "uri": ("False", "True")})),
    ("sqlite3.connect", Case(
        "sqlite3.connect('x.db', autocommit={autocommit}).close()",
        {"autocommit": ("sqlite3.LEGACY_TRANSACTION_CONTROL", "True")}, since=(3, 12))),
    # ── What a written file held, when it is gone at the end ────────────────────────────────────────
    *(("builtins.open", Case(call, {"content": ("'1'", "'2'")})) for call in (
        "pathlib.Path('x').write_text({content}); subprocess.run(['cat', 'x'], stdout=-3); os.remove('x')",
        "pathlib.Path('x').write_text({content}); os.remove('x')",
        "pathlib.Path('x').write_text({content}); pathlib.Path('x').write_text('3')",
        "pathlib.Path('x').write_text({content}); os.close(os.open('x', os.O_WRONLY | os.O_TRUNC))",
        "pathlib.Path('x').write_text({content}); os.replace('x', 'y'); os.remove('y')",
        "pathlib.Path('x').write_text({content}); pathlib.Path('y').write_text('3'); os.replace('y', 'x')",
        "pathlib.Path('d/x').write_text({content}); shutil.rmtree('d')",
        "pathlib.Path('x').write_text({content}); subprocess.run(['sed', '-i', 's/1/9/', 'x']); os.remove('x')",
        "import tempfile\nwith tempfile.NamedTemporaryFile('w') as f: f.write({content})",
        "import tempfile\nf = tempfile.NamedTemporaryFile('w', delete=False); f.write({content}); f.close()",
        "import tempfile\nd, n = tempfile.mkstemp()\nwith os.fdopen(d, 'w') as f: f.write({content})\nos.remove(n)",
        "import tempfile\nwith tempfile.TemporaryDirectory() as d: pathlib.Path(d, 'x').write_text({content})",
    )),
)  # fmt: skip
"""(function, a call of it); arguments that the function doesn't have belong to the content that passes through it."""
