"""Tokens that replace secrets in a recording, and the key that makes them."""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import re
from pathlib import Path
from typing import Final

from spanreplay.model.errors import ConfigError
from spanreplay.model.private import open_trusted, refuse_link

__all__ = ["TOKEN", "Tokenizer", "key_id_of", "load_or_create_key"]

logger = logging.getLogger(__name__)

ALPHABET: Final = "bcdfghjklmnpqrstvwxz"
"""No digits (a hex token can look like a card number) and no vowels (it can't spell a word)."""
LETTERS: Final = 16  # of 20: 69 bits
TOKEN: Final = re.compile(rb"rdx-[bcdfghjklmnpqrstvwxz]{17}")
TOKEN_CHARS: Final = len("rdx-") + 1 + LETTERS
KEY_BYTES: Final = 32
KEY_FILE_BYTES_MAX: Final = 4096
_CACHE_ITEMS_MAX: Final = 4096


class Tokenizer:
    """Makes tokens: equal values get equal tokens, and a token reveals nothing about its value.

    A token does not depend on the rule that found the value: the same value found by two rules must get one
    token, or replay keys would differ. Thread-safe.
    """

    def __init__(self, key: bytes, key_id: str) -> None:
        if len(key) < 16:
            raise ConfigError(f"redaction key has {len(key)} bytes; at least 16 are needed")
        if len(key_id) != 1 or key_id not in ALPHABET:
            raise ConfigError(f"redaction key id {key_id!r} is not one letter of {ALPHABET!r}")
        self._key = key
        self._prefix = f"rdx-{key_id}"
        self._cache: dict[bytes, str] = {}

    @property
    def key_text(self) -> bytes:
        """The key as its file has it; an agent that reads the file must not record it."""
        return self._key.hex().encode("ascii")

    def token(self, value: bytes) -> str:
        """`rdx-`, the key id, 16 letters of the value's HMAC-SHA-256."""
        found = self._cache.get(value)
        if found is not None:
            return found
        made = self.make(value)
        if len(self._cache) < _CACHE_ITEMS_MAX and len(value) <= 512:
            self._cache[value] = made
        return made

    def make(self, value: bytes) -> str:
        """The token of a value that is not known to be secret; nothing is remembered."""
        number = int.from_bytes(hmac.digest(self._key, value, "sha256")[:10], "big")
        letters = []
        for _ in range(LETTERS):
            number, remainder = divmod(number, len(ALPHABET))
            letters.append(ALPHABET[remainder])
        return self._prefix + "".join(letters)

    def token_of(self, text: str) -> str:
        """The token of a text, also of one that is not valid Unicode."""
        return self.token(text.encode("utf-8", "surrogatepass"))

    def derive(self, purpose: bytes) -> bytes:
        """Derive a separate key for another purpose; it reveals nothing about this one."""
        return hmac.digest(self._key, b"\0derived " + purpose, "sha256")

    @property
    def blank(self) -> str:
        """The token of a value that could not even be read."""
        return self._prefix + ALPHABET[0] * LETTERS


def key_id_of(key: bytes) -> str:
    """The letter that distinguishes tokens of one key from those of another."""
    return ALPHABET[hmac.digest(key, b"spanreplay key id", "sha256")[0] % len(ALPHABET)]


def load_or_create_key(path: Path, *, is_named: bool = False) -> tuple[bytes, str]:
    """The redaction key of a directory and its id; made on first use, mode 0600.

    Processes that race get the same key: the file is read and written under a lock. `is_named` says that the user
    named the file. Raises: ConfigError if the file cannot be used, or others may read or change it.
    """
    try:
        if not is_named and path.parent.name == ".spanreplay":
            refuse_link(path.parent)
        key = b""
        if os.path.lexists(path):
            with open_trusted(path, is_named=is_named) as stream:
                key = _parse_key(path, stream.read(KEY_FILE_BYTES_MAX))
        if not key:
            key = _create_key(path)
    except OSError as exc:
        raise ConfigError(
            f"cannot use the redaction key {str(path)!r}: {exc.strerror or type(exc).__name__}",
            hint="make the key and its directory accessible only to you, or set SPANREPLAY_REDACT_KEY to such a key",
        ) from exc
    return key, key_id_of(key)


def _create_key(path: Path) -> bytes:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # The kernel drops the lock with the descriptor, so a process that dies here blocks nobody.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        written = os.read(descriptor, 4096)
        key = _parse_key(path, written)
        if not key:
            key = os.urandom(KEY_BYTES)
            os.write(descriptor, key.hex().encode() + b"\n")
            os.fsync(descriptor)
        return key
    finally:
        os.close(descriptor)


def _parse_key(path: Path, content: bytes) -> bytes:
    """The key in a key file; empty while its creator has not written it yet."""
    if not content:
        return b""
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{str(path)!r} is not a redaction key: expected {2 * KEY_BYTES} hexadecimal digits",
            hint="restore it, or remove it to make a new one (old recordings then no longer match)",
        )
    return key
