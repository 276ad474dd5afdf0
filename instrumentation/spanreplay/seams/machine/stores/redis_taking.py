"""Commands of Redis that take messages: blocking pops, reads of streams, messages of subscriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spanreplay.runtime.calls.taking import Source, Taker, Taking, find_taker
from spanreplay.seams.machine.stores.redis_calls import describe_command, describe_message, name_of

__all__ = ["find_taking", "find_taking_of_subscription"]

_POPS: Final = re.compile(r"redis\.(BLPOP|BRPOP|BLMOVE|BRPOPLPUSH|BLMPOP|BZPOPMIN|BZPOPMAX|BZMPOP)")
_READS: Final = re.compile(r"redis\.(XREADGROUP|XREAD)")
_FIRST: Final = frozenset({"redis.BLMPOP", "redis.BZMPOP"})
"""Commands whose first argument is the timeout, and the second the number of keys."""
_MESSAGES: Final = frozenset({"message", "pmessage", "smessage"})


def find_taking(client: Any, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Taker, Taking] | None:
    """Return the taker for a command that takes messages; None if it is a call like others."""
    name = name_of(args)
    if _POPS.fullmatch(name):
        timeout = args[1] if name in _FIRST else args[-1]
        keys = args[3 : 3 + int(args[2])] if name in _FIRST else args[1 : 2 if "MOVE" in name or "PUSH" in name else -1]
        is_waiting = not _number(timeout)
    elif _READS.fullmatch(name):
        words = [_text(each).upper() for each in args]
        block = words.index("BLOCK") + 1 if "BLOCK" in words else 0
        if "STREAMS" not in words or (not block and name.endswith("XREAD")):
            return None
        named = args[words.index("STREAMS") + 1 :]
        keys, is_waiting = named[: len(named) // 2], bool(block) and not _number(args[block])
    else:
        return None
    source = Source(" ".join(("redis", *map(_text, keys))), id(getattr(client, "connection_pool", client)))
    taker = find_taker(source)
    if taker is None:
        return None
    nothing = None if is_waiting else list if _READS.fullmatch(name) else _none
    return taker, Taking(source, lambda: describe_command(client, args, options), is_nothing=_is_empty, nothing=nothing)


def find_taking_of_subscription(pubsub: Any, *, is_waiting: bool) -> tuple[Taker, Taking] | None:
    """Return the taker for the next message of subscriptions; None if it is a call like others."""
    named = sorted({_text(each) for each in (*pubsub.channels, *pubsub.patterns)})
    source = Source(" ".join(("redis", *named)), id(pubsub))
    taker = find_taker(source)
    if taker is None:
        return None
    return taker, Taking(
        source,
        lambda: describe_message(pubsub, is_waiting=is_waiting),
        is_nothing=_is_notice,
        nothing=None if is_waiting else _none,
    )


def _number(timeout: Any) -> float:
    try:
        return float(timeout or 0)
    except (TypeError, ValueError):  # the server refuses it
        return 1.0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_empty(found: Any) -> bool:
    return not found


def _is_notice(found: Any) -> bool:
    """Whether what a subscription heard is no message: that it has begun or ended."""
    return not found or _text(found[0]) not in _MESSAGES


def _none() -> None:
    """Return what a command gives that has found nothing."""
