"""The treatment of each argument of the functions by which an agent acts on the world.

Compared: a different value is a different run. Ignored: it leaves the process but is not compared, so a verdict names
it. Inside: it does not leave the process, so there is nothing to compare. A test changes every compared argument, and
fails for a seam, a replaced function or an argument without a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Arguments:
    """The arguments of one function, by how they are treated."""

    compared: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Name → why."""
    inside: Mapping[str, str] = field(default_factory=dict)
    """Name → why it does not leave the process."""

    @property
    def names(self) -> frozenset[str]:
        """Every argument that is listed."""
        return frozenset({*self.compared, *self.ignored, *self.inside})


def _of(compared: str, **inside: str) -> Arguments:
    return Arguments(tuple(compared.split()), inside=inside)


_WAITS: Final = "how long the agent waits"
_BUFFERS: Final = "how the agent's end of a pipe or file is buffered"
_TEXT: Final = "how text becomes bytes: the bytes are compared"
_ERRORS: Final = "how a failure is handled: the calls made then are compared"
_LEFT: Final = "writes are compared by the content of the file, when it is removed or the run ends"
_ROWS: Final = "how the agent reads rows"
_OPENS: Final = "how the descriptor behaves; the effect of opening the file is compared"
_MEANS: Final = "states what the target of a link will be, on Windows only"

_AT: Final = "dir_fd follow_symlinks"
_PROGRAM: Final = (
    "executable stdin stdout stderr preexec_fn close_fds shell cwd env restore_signals start_new_session process_group "
    "pass_fds user group extra_groups umask"
)
_PROGRAM_INSIDE: Final = {
    "bufsize": _BUFFERS, "pipesize": _BUFFERS, "universal_newlines": _TEXT, "text": _TEXT, "encoding": _TEXT,
    "errors": _TEXT, "startupinfo": "of Windows", "creationflags": "of Windows",
}  # fmt: skip
_LOOP_INSIDE: Final = {
    "protocol_factory": "which object of the agent hears of the program",
    **dict.fromkeys(("universal_newlines", "shell", "bufsize", "encoding", "errors", "text"), "has one value only"),
}
_SIZE: Final = "how large the agent's buffer is: the received data is recorded"
_TRUSTS: Final = "whom the agent trusts; what is sent to the peer is compared"
_SESSION: Final = "autocommit isolation_level"

FUNCTIONS: Final[Mapping[str, Arguments]] = {
    # ── Paths ───────────────────────────────────────────────────────────────────────────────────────
    "os.chmod": _of(f"path mode {_AT}"),
    "os.chown": _of(f"path uid gid {_AT}"),
    "os.lchown": _of("path uid gid"),
    "os.lchmod": _of("path mode"),
    "os.chflags": _of("path flags follow_symlinks"),
    "os.lchflags": _of("path flags"),
    "os.utime": _of(f"path times ns {_AT}"),
    "os.mkdir": _of("path mode dir_fd"),
    "os.rmdir": _of("path dir_fd"),
    "os.remove": _of("path dir_fd"),
    "os.unlink": _of("path dir_fd"),
    "os.rename": _of("src dst src_dir_fd dst_dir_fd"),
    "os.replace": _of("src dst src_dir_fd dst_dir_fd"),
    "os.link": _of("src dst src_dir_fd dst_dir_fd follow_symlinks"),
    "os.symlink": _of("src dst dir_fd", target_is_directory=_MEANS),
    "os.mkfifo": _of("path mode dir_fd"),
    "os.mknod": _of("path mode device dir_fd"),
    "os.truncate": _of("path length"),
    "os.setxattr": _of("path attribute value flags follow_symlinks"),
    "os.removexattr": _of("path attribute follow_symlinks"),
    "os.fchmod": _of("fd mode"),
    "os.fchown": _of("fd uid gid"),
    "os.ftruncate": _of("fd length"),
    "os.open": _of("path flags mode dir_fd"),
    "shutil.rmtree": _of("path dir_fd", ignore_errors=_ERRORS, onerror=_ERRORS, onexc=_ERRORS),
    "builtins.open": _of(
        "file opener", mode=_LEFT, buffering=_BUFFERS, encoding=_LEFT, errors=_LEFT, newline=_LEFT, closefd=_OPENS
    ),
    # ── The process and others ──────────────────────────────────────────────────────────────────────
    "os.chdir": _of("path"),
    "os.fchdir": _of("fd"),
    "os.chroot": _of("path"),
    "os.umask": _of("mask"),
    "os.nice": _of("increment"),
    "os.setpriority": _of("which who priority"),
    "os.setuid": _of("uid"),
    "os.seteuid": _of("euid"),
    "os.setgid": _of("gid"),
    "os.setegid": _of("egid"),
    "os.setreuid": _of("ruid euid"),
    "os.setregid": _of("rgid egid"),
    "os.setresuid": _of("ruid euid suid"),
    "os.setresgid": _of("rgid egid sgid"),
    "os.setgroups": _of("groups"),
    "os.initgroups": _of("username gid"),
    "os.setpgid": _of("pid pgrp"),
    "os.setpgrp": _of(""),
    "os.setsid": _of(""),
    "os.sched_setaffinity": _of("pid mask"),
    "os.sched_setparam": _of("pid param"),
    "os.sched_setscheduler": _of("pid policy param"),
    "os.setns": _of("fd nstype"),
    "os.unshare": _of("flags"),
    "os.putenv": _of("name value"),
    "os.unsetenv": _of("name"),
    "os.kill": _of("pid signal"),
    "os.killpg": _of("pgid signal"),
    "os.system": _of("command"),
    "syslog.syslog": _of("priority message"),
    "syslog.openlog": _of("ident logoption facility"),
    "syslog.closelog": _of(""),
    "syslog.setlogmask": _of("maskpri"),
    # ── Programs ────────────────────────────────────────────────────────────────────────────────────
    "subprocess.Popen.__init__": Arguments(("args", *_PROGRAM.split()), inside=_PROGRAM_INSIDE),
    "subprocess.Popen.communicate": _of("input", timeout=_WAITS),
    "subprocess.Popen.wait": _of("", timeout=_WAITS),
    "subprocess.Popen.poll": _of(""),
    "subprocess.Popen.send_signal": _of("sig"),
    "asyncio.create_subprocess_exec": _of("program args stdin stdout stderr kwds", limit=_BUFFERS),
    "asyncio.create_subprocess_shell": _of("cmd stdin stdout stderr kwds", limit=_BUFFERS),
    "asyncio.base_events.BaseEventLoop.subprocess_exec": _of(
        "program args stdin stdout stderr kwargs", **_LOOP_INSIDE),
    "asyncio.base_events.BaseEventLoop.subprocess_shell": _of(
        "cmd stdin stdout stderr kwargs", **_LOOP_INSIDE),
    "asyncio.subprocess.Process.send_signal": _of("signal"),
    "asyncio.subprocess.Process.terminate": _of(""),
    "asyncio.subprocess.Process.kill": _of(""),
    # ── Datagrams ───────────────────────────────────────────────────────────────────────────────────
    "socket.socket.connect": _of("address"),
    "socket.socket.connect_ex": _of("address"),
    "socket.socket.bind": _of("address"),
    "socket.socket.send": _of("data flags"),
    "socket.socket.sendall": _of("data flags"),
    "socket.socket.sendto": _of("data address flags"),
    "socket.socket.sendmsg": _of("buffers ancdata flags address"),
    "socket.socket.recv": _of("bufsize flags"),
    "socket.socket.recvfrom": _of("bufsize flags"),
    "socket.socket.recv_into": _of("nbytes flags", buffer=_SIZE),
    "socket.socket.recvfrom_into": _of("nbytes flags", buffer=_SIZE),
    "socket.socket.recvmsg": _of("bufsize ancbufsize flags"),
    "socket.socket.recvmsg_into": _of("ancbufsize flags", buffers=_SIZE),
    "socket.socket.getsockname": _of(""),
    "socket.socket.getpeername": _of(""),
    "socket.socket.dup": _of(""),
    "socket.socket.detach": _of(""),
    "socket.socket.close": _of(""),
    "socket.socket.shutdown": _of("how"),
    "socket.socket.sendfile": _of("file offset count"),
    "socket.getaddrinfo": _of("host port family type proto flags"),
    "socket.gethostbyname": _of("hostname"),
    "socket.gethostbyname_ex": _of("hostname"),
    "socket.gethostbyaddr": _of("ip_address"),
    "socket.getnameinfo": _of("sockaddr flags"),
    "asyncio.base_events.BaseEventLoop.create_datagram_endpoint": _of(
        "local_addr remote_addr family proto flags reuse_port allow_broadcast", protocol_factory="the agent's own",
        sock="a socket of the agent's, whose address is compared",
    ),
    # ── Connections ─────────────────────────────────────────────────────────────────────────────────
    "asyncio.base_events.BaseEventLoop.create_connection": _of(
        "host port ssl family proto flags local_addr server_hostname", protocol_factory="the agent's own",
        sock="a socket of the agent's, whose address is compared",
        **dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout", "happy_eyeballs_delay"), _WAITS),
        interleave="which of the addresses is tried first", all_errors=_ERRORS,
    ),
    "asyncio.base_events.BaseEventLoop.create_unix_connection": _of(
        "path ssl server_hostname", protocol_factory="the agent's own",
        sock="a socket of the agent's, whose address is compared",
        **dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), _WAITS),
    ),
    "asyncio.base_events.BaseEventLoop.start_tls": _of(
        "server_hostname", transport="the connection, which is compared", protocol="the agent's own",
        sslcontext=_TRUSTS, server_side="is one value for connections that the agent opens",
        **dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), _WAITS),
    ),
    "asyncio.base_events.BaseEventLoop.sendfile": _of(
        "", transport="the connection, which is compared", file="what is sent of it is compared",
        offset="what is sent is compared", count="what is sent is compared", fallback=_ERRORS,
    ),
    "select.select": _of("rlist wlist xlist", timeout=_WAITS),
    **{
        f"selectors.{name}.select": _of("", timeout=_WAITS)
        for name in ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")
    },
    "ssl.SSLContext.wrap_socket": _of(
        "server_hostname", sock="the connection, which is compared", session=_TRUSTS,
        server_side="is one value for connections that the agent opens", suppress_ragged_eofs=_ERRORS,
        do_handshake_on_connect="when the handshake is made: it is a call",
    ),
    "ssl.SSLSocket.do_handshake": _of("", block=_WAITS),
    "ssl.SSLSocket.unwrap": _of(""),
    "ssl.SSLSocket.read": _of("len", buffer=_SIZE),
    "ssl.SSLSocket.write": _of("data"),
    "ssl.SSLSocket.send": _of("data", flags="has one value only"),
    "ssl.SSLSocket.getpeercert": _of("binary_form"),
    "ssl.SSLSocket.get_channel_binding": _of("cb_type"),
    **{
        f"ssl.SSLSocket.{name}": _of("")
        for name in ("cipher", "compression", "pending", "selected_alpn_protocol", "shared_ciphers", "version")
    },
    # ── Databases ───────────────────────────────────────────────────────────────────────────────────
    "sqlite3.connect": _of(
        f"database uri {_SESSION}", timeout=_WAITS, detect_types=_ROWS, check_same_thread="which thread of the agent",
        factory="a class of the agent's", cached_statements="a cache of the agent's",
    ),
}  # fmt: skip
"""Module and name of a replaced function → its arguments, without `self`."""

WIRES: Final[Mapping[str, str]] = {
    "httpx": "method url query headers body", "httpx2": "method url query headers body",
    "requests": "method url query headers body", "aiohttp": "method url query headers body",
    "urllib3": "method url query headers body", "urllib": "method url query headers body",
    "botocore": "method url query headers body", "grpc": "method metadata message",
    "websockets": "url headers messages",
}  # fmt: skip
"""Seams that see the outgoing request → which parts of it are compared, whichever argument set them.

Credential, connection and trace headers are ignored, and named in the verdict (`http_headers`).
"""

STATEMENTS: Final[Mapping[str, str]] = {
    "psycopg": "statement parameters commit rollback transaction isolation_level read_only deferrable autocommit",
    "psycopg2": "statement parameters commit rollback isolation_level readonly deferrable autocommit",
    "aiosqlite": "statement parameters commit rollback",
    "dbapi": "statement parameters commit rollback methods attributes autocommit isolation_level init_command, which "
    "cursor or connection is asked; with asyncio also charset client_flag sql_mode time_zone, classes of cursors",
    "asyncpg": "statement parameters column begin commit rollback savepoint cursor codec server_settings",
    "duckdb": "statement parameters begin commit rollback append",
    "redis": "command options commands transaction raise_on_error db decoded",
    **dict.fromkeys(
        ("confluent-kafka", "aiokafka", "kafka-python"),
        "topic key value partition headers timestamp, arguments of all other methods except times to wait; settings "
        "that decide what the broker gets or gives",
    ),
    "pymongo": "database command documents, without the numbers of sessions and cluster times",
    "kombu": "exchange routing_key body headers properties queue arguments flags delivery_tag, not timeouts or retries",
    "nats-py": "subject payload reply headers queue limit batch stream consumer, not timeouts",
    "pika": "exchange routing_key body properties queue arguments flags delivery_tag, not drawn consumer tags",
    "aio-pika": "exchange routing_key message queue arguments flags delivery_tag consumer_tag, not timeouts",
}  # fmt: skip
"""Seams of databases and brokers → what is compared of a connection's use."""

_PLAIN: Final = "reads something, or concerns the agent's side of the connection"

METHODS: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite3.Connection": {
        **dict.fromkeys(("close", "getlimit", "getconfig", "interrupt", "iterdump", "set_progress_handler",
                         "set_trace_callback"), _PLAIN),
    },
    "sqlite3.Cursor": dict.fromkeys(("close", "setinputsizes", "setoutputsize"), _PLAIN),
    "psycopg.Connection": {
        **dict.fromkeys(("add_notice_handler", "add_notify_handler", "cancel", "cancel_safe", "close", "cursor",
                         "execute", "fileno", "notifies", "pipeline", "remove_notice_handler", "remove_notify_handler",
                         "tpc_recover", "wait", "xid"), _PLAIN),
    },
    "psycopg.Cursor": dict.fromkeys(("scroll", "set_result", "results", "setinputsizes", "setoutputsize"), _PLAIN),
    "asyncpg.connection.Connection": dict.fromkeys(
        ("add_log_listener", "add_query_logger", "add_termination_listener", "cursor", "get_reset_query", "is_closed",
         "is_in_transaction", "query_logger", "reload_schema_state", "remove_listener", "remove_log_listener",
         "remove_query_logger", "remove_termination_listener", "terminate", "transaction"), _PLAIN),
    "asyncpg.prepared_stmt.PreparedStatement": dict.fromkeys(
        ("cursor", "explain", "get_attributes", "get_name", "get_parameters", "get_query", "get_statusmsg"), _PLAIN),
    "asyncpg.cursor.Cursor": {},
    "psycopg2.extensions.connection": {
        **dict.fromkeys(("cancel", "fileno", "get_backend_pid", "get_dsn_parameters", "get_native_connection",
                         "get_parameter_status", "get_transaction_status", "isexecuting", "poll", "set_client_encoding",
                         "tpc_recover", "xid"), _PLAIN),
    },
    "psycopg2.extensions.cursor": dict.fromkeys(
        ("cast", "nextset", "scroll", "setinputsizes", "setoutputsize"), _PLAIN),
}  # fmt: skip
"""Classes of connections and cursors → their methods that none of our classes replaces, and why nothing is lost."""

LEAVES: Final = frozenset(
    {"langchain-tools", "langchain-retrievers", "llamaindex-tools", "llamaindex-retrievers", "llamaindex-workflows",
     "openai-agents", "autogen", "haystack", "mcp", "pydantic-ai", "crewai", "smolagents", "google-adk", "dspy", "agno",
     "chromadb"}
)  # fmt: skip
"""Seams whose calls are function calls: a call's key is made of all its arguments."""

_READS: Final = "only reads something: its answer is recorded, and a different question changes later calls"
_ORDERS: Final = "only keeps lanes and their order"
_MISSES: Final = "only notes I/O that no other seam sees: such a run is incomplete, and its replay denies the I/O"

INSIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("clock", "logging", "random", "temporary", "entropy", "machine", "numpy", "uuid", "uuid_utils", "fastuuid",
         "engineio", "human", "prompts", "stdin", "waited-signals", "looks", "environ", "bcrypt", "cryptography",
         "native-random", "pynacl"),
        _READS,
    ),
    **dict.fromkeys(("threads", "uvloop", "uvloop-steps", "gevent", "multiprocessing", "pool-waits", "langgraph",
                     "trio", "anyio", "returns"), _ORDERS),
    **dict.fromkeys(("passed-queues", "langgraph-queues", "langgraph-effects", "uvloop-queues"), "the process itself"),
    "own-servers": "requests to the agent's own process",
    "mcp-transports": "the session's requests are recorded above it",
    "blockbuster": "it changes nothing but whose calls may block",
    "wandb": "keeps what its service says of a run, which the agent may read; its reports are telemetry",
    **dict.fromkeys(("leaks", "native-clients"), _MISSES),
    "native-files": "writes are compared by the content of the file; those of DuckDB by its statements",
}  # fmt: skip
"""Seams through which nothing leaves the process, and why."""
FUNCTION_SEAMS: Final = frozenset({"subprocess", "sqlite3", "files", "changes", "system-log", "datagrams"})
"""Seams whose every function has a row in `FUNCTIONS`."""

_ASKS: Final = "asks the system or the process, and changes nothing"
_ITSELF: Final = "is about the process's own descriptors, memory or children"
_BY_CONTENT: Final = "writes to a file, which is compared by its content"
_MADE_OF: Final = "calls functions that have rows of their own"
_DENIED: Final = (
    "starts a program or process that no seam sees: such a run is incomplete, and its replay denies the start"
)


def _each(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


OS_OTHERS: Final[Mapping[str, str]] = {
    **_each(
        """
        WCOREDUMP WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WSTOPSIG WTERMSIG access confstr
        cpu_count ctermid device_encoding fpathconf fsdecode fsencode fspath fstat fstatvfs fwalk get_blocking
        get_exec_path get_inheritable get_terminal_size getcwd getcwdb getegid getenv getenvb geteuid getgid
        getgrouplist getgroups getloadavg getlogin getpgid getpgrp getpid getppid getpriority getrandom
        getresgid getresuid getsid getuid getxattr isatty listdir listxattr lseek lstat major makedev minor
        pathconf pidfd_getfd posix_fadvise pread preadv process_cpu_count ptsname read readinto readlink readv
        scandir sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam
        sched_getscheduler sched_rr_get_interval stat statvfs strerror sysconf tcgetpgrp timerfd_gettime
        timerfd_gettime_ns times ttyname uname urandom wait wait3 wait4 waitid waitpid waitstatus_to_exitcode
        walk reload_environ
        """,
        _ASKS,
    ),
    **_each(
        """
        abort close closerange dup dup2 eventfd eventfd_read eventfd_write fdopen grantpt lockf login_tty
        memfd_create openpty pidfd_open pipe pipe2 plock posix_openpt register_at_fork sched_yield
        set_blocking set_inheritable tcsetpgrp timerfd_create timerfd_settime timerfd_settime_ns unlockpt
        """,
        _ITSELF,
    ),
    **_each(
        """
        copy_file_range fdatasync fsync posix_fallocate pwrite pwritev sendfile splice sync write writev
        """,
        _BY_CONTENT,
    ),
    **_each(
        """
        makedirs popen removedirs renames
        """,
        _MADE_OF,
    ),
    **_each(
        """
        execl execle execlp execlpe execv execve execvp execvpe fork forkpty posix_spawn posix_spawnp spawnl
        spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe startfile
        """,
        _DENIED,
    ),
}
"""Functions of `os` without a row in `FUNCTIONS`, and why nothing of them is lost."""
