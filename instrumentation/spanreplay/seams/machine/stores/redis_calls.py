"""Commands of Redis as calls: their names, arguments and effects, the same for sync and async clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall

CLIENTS: Final = frozenset({"redis", "valkey"})
"""The distributions of the client and of its fork."""
_READS: Final = re.compile(
    r"""
    BITCOUNT| BITFIELD_RO| BITPOS| COMMAND| DBSIZE| DUMP| ECHO| EVALSHA_RO| EVAL_RO| EXISTS| EXPIRETIME| FCALL_RO|
    FT\.AGGREGATE| FT\.INFO| FT\.SEARCH| FT\._LIST| GEODIST| GEOHASH| GEOPOS| GEORADIUSBYMEMBER_RO| GEORADIUS_RO|
    GEOSEARCH| GET| GETBIT| GETRANGE| HEXISTS| HGET| HGETALL| HKEYS| HLEN| HMGET| HPTTL| HRANDFIELD| HSCAN| HSTRLEN|
    HTTL| HVALS| INFO| JSON\.ARRINDEX| JSON\.ARRLEN| JSON\.GET| JSON\.MGET| JSON\.OBJKEYS| JSON\.OBJLEN|
    JSON\.STRLEN| JSON\.TYPE| KEYS| LASTSAVE| LCS| LINDEX| LLEN| LOLWUT| LPOS| LRANGE| MGET| PEXPIRETIME| PFCOUNT|
    PING| PTTL| RANDOMKEY| ROLE| SCAN| SCARD| SDIFF| SINTER| SINTERCARD| SISMEMBER| SMEMBERS| SMISMEMBER| SORT_RO|
    SRANDMEMBER| SSCAN| STRLEN| SUBSTR| SUNION| TIME| TS\.GET| TS\.INFO| TS\.MGET| TS\.MRANGE| TS\.RANGE| TTL| TYPE|
    UNWATCH| VCARD| VDIM| VEMB| VGETATTR| VINFO| VLINKS| VSIM| WATCH| XINFO| XLEN| XPENDING| XRANGE| XREAD|
    XREVRANGE| ZCARD| ZCOUNT| ZDIFF| ZINTER| ZINTERCARD| ZLEXCOUNT| ZMSCORE| ZRANDMEMBER| ZRANGE| ZRANGEBYLEX|
    ZRANGEBYSCORE| ZRANK| ZREVRANGE| ZREVRANGEBYLEX| ZREVRANGEBYSCORE| ZREVRANK| ZSCAN| ZSCORE| ZUNION
    """,
    re.VERBOSE,
)
"""Commands that only read."""
_READING_PAIRS: Final = frozenset(
    ("ACL CAT", "ACL GETUSER", "ACL LIST", "ACL USERS", "ACL WHOAMI", "CLIENT GETNAME", "CLIENT ID", "CLIENT INFO",
     "CLIENT LIST", "CONFIG GET", "FUNCTION DUMP", "FUNCTION LIST", "FUNCTION STATS", "MEMORY STATS", "MEMORY USAGE",
     "MODULE LIST", "OBJECT ENCODING", "OBJECT FREQ", "OBJECT IDLETIME", "OBJECT REFCOUNT", "PUBSUB CHANNELS",
     "PUBSUB NUMPAT", "PUBSUB NUMSUB", "SCRIPT EXISTS", "SLOWLOG GET", "SLOWLOG LEN")
)  # fmt: skip
"""Commands of two words that only read."""
_NAME: Final = re.compile(r"[A-Z0-9_.\- |]{1,40}")
_HIDDEN: Final = "***"
_PLAIN: Final = frozenset({str, bytes, int, float, memoryview, bytearray})
_SECRET_WORDS: Final = ("AUTH", "PASS", "SECRET")
_ACL_SECRETS: Final = (">", "<", "#", "!")
_PAIR: Final = 2
_NOT_SENT: Final = frozenset({"keys"})
"""Options that only the client's own cache reads."""


def _word(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text.upper() if isinstance(text, str) else ""


def _begin(args: Sequence[Any]) -> tuple[str, str]:
    """The first word of a command, and its first two; the client may give both in one argument."""
    words = " ".join(_word(each) for each in args[:_PAIR]).split()
    return (words[0] if words else ""), " ".join(words[:_PAIR])


def name_of(args: Sequence[Any]) -> str:
    """The name of a command's call."""
    word = _word(args[0]) if args else ""
    return f"redis.{word.replace(' ', '_') if _NAME.fullmatch(word) else 'command'}"


def effect_of(args: Sequence[Any]) -> Effect:
    """What a command may change on the server."""
    first, both = _begin(args)
    return Effect.READ if _READS.fullmatch(first) or both in _READING_PAIRS else Effect.IRREVERSIBLE


# ── What must not be shown ──────────────────────────────────────────────────────────────────────────
def _secrets_at(args: Sequence[Any]) -> set[int]:
    """The places of a command's arguments that are credentials."""
    first, both = _begin(args)
    every = range(1, len(args))
    if first == "AUTH":
        return set(every)
    if first in ("HELLO", "MIGRATE"):
        start = next((at for at in every if _word(args[at]).startswith("AUTH")), len(args))
        return set(range(start + 1, min(start + 1 + _PAIR, len(args))))
    if both == "ACL SETUSER":
        return {at for at in every if _word(args[at]).startswith(_ACL_SECRETS)}
    if both == "CONFIG SET":
        return {at for at in every if any(word in _word(args[at - 1]) for word in _SECRET_WORDS)}
    return set()


def _show(args: Sequence[Any]) -> list[Any]:
    """A command's arguments without credentials; the run's errors and texts don't show these either."""
    hidden = _secrets_at(args)
    run = recorded_run() if hidden else None
    if run is not None:
        values = [args[at] for at in sorted(hidden)]
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
        run.redactor.hide([*texts, *(text[1:] for text in texts if text.startswith(_ACL_SECRETS))])
    return [_HIDDEN if at in hidden else _sent(each) for at, each in enumerate(args)]


def _sent(value: Any) -> Any:
    """An argument as the client sends it; of one that it refuses, the type."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    return repr(value) if isinstance(value, (int, float)) and type(value) is not bool else f"({type(value).__name__})"


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────────
def _show_option(value: Any) -> Any:
    if isinstance(value, (str, bytes, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_show_option(each) for each in value]
    shown = value if callable(value) else type(value)
    return f"{getattr(shown, '__module__', '')}.{getattr(shown, '__qualname__', type(shown).__qualname__)}"


def _show_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """How the client reads the answer: the same command may give a different result."""
    return {name: _show_option(value) for name, value in options.items() if name not in _NOT_SENT and value is not None}


def _connection_of(client: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What is compared of a client's connection, and its server, which is only listed where it differs."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None) or {}
    compared: dict[str, Any] = {"db": settings.get("db") or 0} if pool is not None else {}
    if settings.get("decode_responses"):
        compared["decoded"] = settings.get("encoding") or "utf-8"
    name = getattr(pool, "service_name", None)
    server = {key: str(settings[key]) for key in ("host", "port", "path") if settings.get(key)}
    return compared, {"service": str(name)} if name else server


def _describe(name: str, effect: Effect, arguments: Mapping[str, Any], client: Any) -> FunctionCall:
    compared, server = _connection_of(client)
    made = FunctionCall(Kind.TOOL.value, name, effect.value, {**arguments, **compared}, prints=False)
    return made._replace(beside={"server": server}) if server else made


def describe_command(client: Any, args: Sequence[Any], options: Mapping[str, Any]) -> FunctionCall:
    """Describe one command as a call."""
    shown = _show_options(options)
    arguments: dict[str, Any] = {"command": _show(args), **({"options": shown} if shown else {})}
    return _describe(name_of(args), effect_of(args), arguments, client)


def describe_pipeline(
    client: Any, stack: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, raises: bool, is_transaction: bool
) -> FunctionCall:
    """Describe all commands of a pipeline as one call."""
    commands = list(stack)
    is_read = all(effect_of(args) is Effect.READ for args, _ in commands)
    arguments: dict[str, Any] = {
        "commands": [_show(args) for args, _ in commands],
        "transaction": is_transaction,
    }
    options = [_show_options(options) for _, options in commands]
    if any(options):
        arguments["options"] = options
    if not raises:
        arguments["raise_on_error"] = False
    return _describe("redis.pipeline", Effect.READ if is_read else Effect.IRREVERSIBLE, arguments, client)


def describe_connect(client: Any) -> FunctionCall:
    """Describe taking a connection that a client keeps for itself."""
    return _describe("redis.connect", Effect.READ, {}, client)


def describe_message(client: Any, *, is_waiting: bool) -> FunctionCall:
    """Describe a read of the next message of subscriptions; how long it waits is not compared."""
    return _describe("redis.get_message", Effect.READ, {"block": is_waiting}, client)
