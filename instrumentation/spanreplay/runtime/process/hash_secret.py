"""The secret of this process's string hashes, which determine the order of sets; a recording contains it sealed.

Python draws one for each process unless PYTHONHASHSEED is set. Only the redaction key opens it: anyone who knows the
secret can choose texts that make a dictionary of that process slow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard
from spanreplay.runtime.process.environment import RANDOM, read_hash_seed
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor

__all__ = ["SECRET_BYTES", "describe", "explain", "find_recorded", "is_as_recorded", "is_recorded", "read"]

SECRET_BYTES: Final = 24
"""Size of CPython's `_Py_HashSecret_t`."""
_MEMBER: Final = "hashes"
_PURPOSE: Final = b"hashes"
_SYMBOL: Final = "_Py_HashSecret"
_last: list[tuple[bytes, dict[str, str]]] = []
"""The previous key and description: the units of a process have the same."""


@cache
def read() -> bytes:
    """The secret that Python drew, `SECRET_BYTES` long; empty if it drew none or does not reveal it. Linux only."""
    if read_hash_seed() != RANDOM or sys.platform != "linux" or sys.implementation.name != "cpython":
        return b""
    return guard.guarded("the secret of hashes", _read) or b""


def _read() -> bytes:
    with unwatched():
        try:
            import _ctypes  # the half of ctypes that loads quickly

            library: Any = None  # everything that is loaded
            at = _ctypes.dlsym(_ctypes.dlopen(library, os.RTLD_LAZY), _SYMBOL)
            memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (ImportError, OSError):  # Python without ctypes, or a hidden symbol or file: not an error
            return b""
        try:
            return os.pread(memory, SECRET_BYTES, at)
        except OSError:
            return b""
        finally:
            os.close(memory)


def describe(redactor: RunRedactor) -> dict[str, str]:
    """The member of a root's environment that holds the secret, sealed; empty if there is none."""
    if config.read_setting("SPANREPLAY_SEAL") != "true":
        return {}
    secret, key = read(), redactor.derive(_PURPOSE)
    if not secret:
        return {}
    if not _last or _last[0][0] != key:
        from spanreplay.redact.sealing import seal

        _last[:] = [(key, {_MEMBER: seal(key, secret)})]
    return _last[0][1]


def is_recorded(environment: Mapping[str, Any]) -> bool:
    """Whether a root's environment holds the secret of its process."""
    return isinstance(environment.get(_MEMBER), str)


def find_recorded(environment: Mapping[str, Any], derive: Callable[[bytes], bytes]) -> bytes:
    """The secret of the recorded process; empty if it was not recorded, or with another redaction key."""
    sealed = environment.get(_MEMBER)
    if not isinstance(sealed, str):
        return b""
    from spanreplay.redact.sealing import unseal

    secret = unseal(derive(_PURPOSE), sealed) or b""
    return secret if len(secret) == SECRET_BYTES else b""


def is_as_recorded(environment: Mapping[str, Any], redactor: RunRedactor) -> bool:
    """Whether this process hashes texts like the recorded one, which drew its secret."""
    secret = find_recorded(environment, redactor.derive)
    return bool(secret) and secret == read()


def explain(environment: Mapping[str, Any], redactor: RunRedactor) -> str:
    """Why this process's hashes differ from those of the recorded one, which were seeded at random, and what to do."""
    if not is_recorded(environment):
        return "the recording does not hold the seed of its hashes; record with `spanreplay record` or PYTHONHASHSEED"
    if not find_recorded(environment, redactor.derive):
        return "the seed of its hashes is sealed, and its redaction key is not here; SPANREPLAY_REDACT_KEY names it"
    if read_hash_seed() != RANDOM:
        return "PYTHONHASHSEED was not set when it was recorded, and is set here; unset it"
    return "no replay of this kind, or on this machine, can seed Python's hashes; set PYTHONHASHSEED in both"
