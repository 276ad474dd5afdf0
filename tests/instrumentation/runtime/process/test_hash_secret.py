"""The secret of a process's hashes: its value, who can read it, and that its absence breaks nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from spanreplay.redact import Redactor
from spanreplay.runtime.process import hash_secret
from spanreplay.runtime.process.environment import RANDOM

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the secret is read on Linux")

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the secret of this process before and after."""
    hash_secret.read.cache_clear()
    hash_secret._last.clear()
    yield
    hash_secret.read.cache_clear()
    hash_secret._last.clear()


def _read_there(**environ: str) -> str:
    code = "from spanreplay.runtime.process import hash_secret; print(hash_secret.read().hex(), hash('alpha'))"
    settings = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


def test_n2_each_process_has_its_own_secret_and_a_seed_has_none() -> None:
    """Nothing is read from a process whose hashes PYTHONHASHSEED determines."""
    one, other = _read_there(), _read_there()
    assert one != other
    assert len(one.split()[0]) == 2 * hash_secret.SECRET_BYTES
    assert len(_read_there(PYTHONHASHSEED="5").split()) == 1


def test_n2_only_the_key_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is sealed: neither readable as it is nor with another key; a damaged one is ignored."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(hash_secret, "read", lambda: b"s" * hash_secret.SECRET_BYTES)
    redactor = Redactor(KEY, "b").run()
    described: dict[str, Any] = hash_secret.describe(redactor)
    assert hash_secret.is_recorded(described)
    assert b"s" * 8 not in str(described).encode()
    assert hash_secret.find_recorded(described, redactor.derive) == hash_secret.read()
    assert hash_secret.find_recorded(described, Redactor(OTHER, "c").run().derive) == b""
    assert hash_secret.find_recorded({"hashes": "AAAA"}, redactor.derive) == b""
    assert hash_secret.find_recorded({"hashes": 7}, redactor.derive) == b""
    monkeypatch.setenv("SPANREPLAY_SEAL", "false")
    assert hash_secret.describe(redactor) == {}


def test_n2_where_memory_can_not_be_read_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a hardened container hides it, nothing is raised and nothing recorded."""
    monkeypatch.setattr(hash_secret, "read_hash_seed", lambda: RANDOM)

    def refuse(*args: object, **kwargs: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as hidden:
        hidden.setattr(os, "open", refuse)
        assert hash_secret.read() == b""
    assert hash_secret.describe(Redactor(KEY, "b").run()) == {}
