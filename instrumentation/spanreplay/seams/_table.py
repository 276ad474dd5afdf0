"""The table of seams: one row a library. A seam's code is imported when its library is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TRANSPORT: Final = "`llm` or `embedding` where a dialect reads the request, else `http`"
_BY_METHOD: Final = "`read` for models and for GET, HEAD and OPTIONS, else `write`"
_NONE: Final = "–"


@dataclass(frozen=True)
class Seam:
    """One library: which module's import triggers which of our modules, and what it then records.

    The seam's module has `install(module, patches)`; it raises if the library is not as expected. The texts are what
    the pages of docs/frameworks and docs/reference are made of, in Markdown: one line each.
    """

    name: str
    distribution: str
    triggers: tuple[str, ...]
    implementation: str
    records: str
    kind: str = _NONE
    """The kind of the boundary."""
    effect: str = _NONE
    """What a call may do to the world."""
    lanes: str = "the task, thread or pool call that it is made in"
    """How the lane of a call is named, and what identifies the call beside its place."""
    versions: str = "any"
    """The versions of the distribution that are supported; the tested ones are read from what the tests pin."""
    omits: str = "nothing known"
    """What is not recorded."""
    page: str = ""
    """The page of docs/frameworks that tells of it; by default one of its distribution's name."""


SEAMS: Final[tuple[Seam, ...]] = (
    Seam(
        "clock",
        "python",
        ("time",),
        "spanreplay.local.clock",
        "reads of the clock by the agent's code",
        kind="`clock`, as reads before the lane's next call",
        effect="`read`",
        lanes="the lane of the code that reads",
        omits="clocks that C code or a library reads for itself; `time.sleep` sleeps only while recording",
    ),
    Seam(
        "random",
        "python",
        ("random",),
        "spanreplay.local.randomness",
        "random numbers of the agent's code",
        kind="`random`, as reads before the lane's next call",
        effect="`read`",
        lanes="the lane of the code that reads",
        omits="generators of numpy and torch; generators that the agent seeds itself need no recording",
    ),
    Seam(
        "entropy",
        "python",
        ("os", "secrets"),
        "spanreplay.local.entropy",
        "`os.urandom` and `secrets`, sealed",
        kind="`random`, as reads before the lane's next call",
        effect="`read`",
        lanes="the lane of the code that reads",
        omits="what C code takes from the operating system by itself",
    ),
    Seam(
        "uuid",
        "python",
        ("uuid",),
        "spanreplay.local.uuids",
        "UUIDs that the agent's code makes",
        kind="`random`, as reads before the lane's next call",
        effect="`read`",
        lanes="the lane of the code that reads",
        omits="UUIDs that a library makes for itself",
    ),
    Seam(
        "human",
        "python",
        ("builtins", "getpass"),
        "spanreplay.local.human",
        "`input()` and `getpass()` of the agent",
        kind="`human`",
        effect="`read`",
        omits="what is read from `sys.stdin` directly",
    ),
    Seam(
        "subprocess",
        "python",
        ("subprocess", "asyncio"),
        "spanreplay.local.processes",
        "processes that the agent's code starts; in a replay none is started",
        kind="`tool`",
        effect="`irreversible`",
        omits="processes that a tool starts (the tool's result is recorded); `asyncio.create_subprocess_*` is a hole",
    ),
    Seam(
        "sqlite3",
        "python",
        ("sqlite3",),
        "spanreplay.local.database",
        "statements of the agent's code; in a replay no database is opened",
        kind="`tool`",
        effect="`read` for SELECT and its like, else `irreversible`",
        omits="statements inside a tool (the tool's result is recorded)",
    ),
    Seam(
        "uvloop",
        "uvloop",
        ("uvloop",),
        "spanreplay.seams._uvloop",
        "nothing by itself: names the lane of each task",
        lanes="each task that a loop creates: its coroutine's name and a counter",
        versions=">=0.17",
        omits="the order of completion: uvloop keeps its own time",
    ),
    Seam(
        "leaks",
        "python",
        ("socket", "os", "time", "ctypes"),
        "spanreplay.local.watch",
        "nothing by itself: notes I/O outside of every boundary, by call site",
        lanes="none: its place is a line of code",
        omits="sockets that C code opens for itself; `SPANREPLAY_AUDIT=full` sees more",
    ),
    Seam(
        "multiprocessing",
        "python",
        ("multiprocessing.process",),
        "spanreplay.seams._multiprocessing",
        "nothing: a process that is started is a hole",
        omits="everything that the child process does",
    ),
    Seam(
        "httpx",
        "httpx",
        ("httpx",),
        "spanreplay.seams._httpx",
        "every request of httpx clients",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=0.24",
        omits="requests below an MCP session: the session's call is recorded",
    ),
    Seam(
        "httpx2",
        "httpx2",
        ("httpx2",),
        "spanreplay.seams._httpx",
        "every request of httpx2 clients",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=2",
        omits="requests below an MCP session: the session's call is recorded",
    ),
    Seam(
        "requests",
        "requests",
        ("requests",),
        "spanreplay.seams._requests",
        "every request of requests sessions",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=2.20",
    ),
    Seam(
        "aiohttp",
        "aiohttp",
        ("aiohttp",),
        "spanreplay.seams._aiohttp",
        "every request of aiohttp client sessions",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=3.9",
        omits="aiohttp's websockets",
    ),
    Seam(
        "urllib3",
        "urllib3",
        ("urllib3",),
        "spanreplay.seams._urllib3",
        "every request of urllib3 pools",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=1.26",
        omits="what requests or botocore send through it: their call is recorded",
    ),
    Seam(
        "botocore",
        "botocore",
        ("botocore.httpsession",),
        "spanreplay.seams._botocore",
        "every request of boto3 and other AWS clients",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        versions=">=1.30",
    ),
    Seam(
        "files",
        "python",
        ("builtins",),
        "spanreplay.local.files",
        "data files outside of its code that the agent reads",
        kind="`tool`",
        effect="`read`",
        omits="files of the code tree and of packages, files that tools or libraries read",
    ),
    Seam(
        "environ",
        "python",
        ("os",),
        "spanreplay.local.environ",
        "hashes of the variables that the agent reads",
        lanes="the run: a variable is compared once",
        omits="the values: they are compared, never served",
    ),
    Seam(
        "grpc",
        "grpcio",
        ("grpc",),
        "spanreplay.seams._grpc",
        "every call of gRPC channels, sync and asyncio",
        kind="`http`",
        effect="`write`",
        versions=">=1.50",
        omits="channels that C++ libraries open by themselves",
    ),
    Seam(
        "urllib",
        "python",
        ("urllib.request",),
        "spanreplay.seams._urllib",
        "every request of urllib's openers",
        kind=_TRANSPORT,
        effect=_BY_METHOD,
        omits="`http.client` by itself, `ftp:` and `file:` addresses",
    ),
    Seam(
        "websockets",
        "websockets",
        ("websockets.asyncio.client", "websockets.sync.client"),
        "spanreplay.seams._websockets",
        "every connection of websockets clients",
        kind="`llm` for OpenAI's realtime API, else `http`",
        effect="`write`",
        versions=">=13",
        omits="the legacy client (`websockets.legacy`)",
    ),
    Seam(
        "langchain-tools",
        "langchain-core",
        ("langchain_core.tools.base",),
        "spanreplay.seams._langchain_tools",
        "the body of every tool",
        kind="`tool`",
        effect="`write`, or what the tool's `metadata` names as `effect`",
        lanes="LangGraph's node where one runs it, else the task, thread or pool call; the model's `tool_call_id`",
        versions=">=0.3",
        omits="a tool's function that is called directly (`tool.func(…)`)",
    ),
    Seam(
        "langchain-retrievers",
        "langchain-core",
        ("langchain_core.retrievers",),
        "spanreplay.seams._langchain_retrievers",
        "the search of every retriever",
        kind="`retriever`",
        effect="`read`",
        lanes="LangGraph's node where one runs it, else the task, thread or pool call",
        versions=">=0.3",
        omits="a vector store that is searched directly: its embedding and its requests are recorded instead",
    ),
    Seam(
        "langgraph",
        "langgraph",
        ("langgraph.pregel._retry", "langgraph.pregel.retry", "langgraph.pregel.main", "langgraph.pregel"),
        "spanreplay.seams._langgraph",
        "nothing by itself: names the lane of each node",
        lanes="step, node and path of LangGraph: `lg:2:tools:…`; never its task ids or checkpoint namespaces",
        versions=">=0.2",
        omits="what a node computes: it runs again in a replay; remote graphs",
    ),
    Seam(
        "mcp",
        "mcp",
        ("mcp.client.session", "mcp.shared.jsonrpc_dispatcher"),
        "spanreplay.seams._mcp",
        "every request of an MCP client session",
        kind="`mcp`",
        effect="`write` for `tools/call`, else `read`",
        versions=">=1.9",
        omits="notifications, and requests that the server makes of the client (sampling, elicitation)",
    ),
    Seam(
        "mcp-transports",
        "mcp",
        ("mcp.client.stdio", "mcp.client.sse", "mcp.client.streamable_http", "mcp.shared._context_streams"),
        "spanreplay.seams._mcp_transports",
        "nothing: in a replay no server is started or dialled",
        versions=">=1.9",
        omits="the transport's own traffic: the requests of the session are recorded above it",
    ),
)
