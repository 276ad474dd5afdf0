"""Ed25519 signatures of runs: anyone with the public key can check that a run is the one that was recorded.

The signature covers the run's root record, which holds the Merkle root over its calls. It is a member of the manifest,
so it travels with the run. `cryptography` is imported only when a run is signed or verified.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import RootRecord
from spanreplay.model.errors import ConfigError
from spanreplay.model.how_to_install import install_command

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MEMBER: Final = "signature"
"""Member of the manifest: {"version", "key", "value"}, or {"error"} if the run could not be signed."""
VERSION: Final = 1
_CONTEXT: Final = b"spanreplay run 1\n"
"""Prefix that separates these signatures from anything else that the key signs."""
_KEY_BYTES_MAX: Final = 16_384
_MAKE: Final = "make one: openssl genpkey -algorithm ed25519 -out signing.pem"


def state_root(root: RootRecord) -> bytes:
    """The signed bytes of a run: all of its root record except the signature, as JSON."""
    manifest = {name: value for name, value in root.manifest.items() if name != MEMBER}
    fields = [
        *(root.run_id, root.app, root.trace_id, root.span_id, root.start_ns, root.end_ns, root.outcome),
        *(root.replay_of, root.user_id, root.session_id),
        *(_digest(dict(root.env)), _digest(manifest)),
    ]
    return _CONTEXT + _canonical(fields)


def _canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()  # as recordings store it


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def sign(root: RootRecord, key_file: str) -> dict[str, Any]:
    """Return the signature of a run. Raises: ConfigError, whose message names the file but never its content."""
    key = _load_private(key_file)
    return {"version": VERSION, "key": name_key(key.public_key()), "value": key.sign(state_root(root)).hex()}


def name_key(key: Ed25519PublicKey) -> str:
    """The first 16 hexadecimal characters of the SHA-256 of a public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def name_own_key(key_file: str) -> str:
    """The name of the key that runs are signed with. Raises: ConfigError."""
    return name_key(_load_private(key_file).public_key())


@functools.lru_cache(maxsize=4)
def _load_private(file: str) -> Ed25519PrivateKey:
    serialization, kind = _import()
    try:
        key = serialization.load_pem_private_key(_read(file), password=None)
    except (ValueError, TypeError) as exc:  # TypeError: it has a password
        raise ConfigError(f"{file} is not a private key in PEM without a password", hint=_MAKE) from exc
    if not isinstance(key, kind.Ed25519PrivateKey):
        raise ConfigError(f"{file} is not a key of Ed25519 but {type(key).__name__}", hint=_MAKE)
    signing: Ed25519PrivateKey = key
    return signing


def load_public_keys(files: Sequence[str]) -> dict[str, Ed25519PublicKey]:
    """Load public keys from PEM files: name → key. Raises: ConfigError."""
    serialization, kind = _import()
    found = {}
    for file in files:
        content = _read(file)
        if b"PRIVATE KEY" in content:
            raise ConfigError(
                f"{file} is a private key, and verifying needs the public one",
                hint="openssl pkey -in signing.pem -pubout -out signing.pub.pem",
            )
        try:
            key = serialization.load_pem_public_key(content)
        except ValueError as exc:
            raise ConfigError(f"{file} is not a public key in PEM") from exc
        if not isinstance(key, kind.Ed25519PublicKey):
            raise ConfigError(f"{file} is not a key of Ed25519 but {type(key).__name__}")
        found[name_key(key)] = key
    return found


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(_KEY_BYTES_MAX)
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror or type(exc).__name__}") from exc


def _import() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as exc:
        raise ConfigError("signatures need the package `cryptography`", hint=install_command("sign")) from exc
    return serialization, ed25519


def find_forgery(root: RootRecord, keys: Mapping[str, Ed25519PublicKey]) -> str:
    """Explain why a root record is not validly signed with one of the keys; '' if it is."""
    from cryptography.exceptions import InvalidSignature

    stated = root.manifest.get(MEMBER)
    if not isinstance(stated, dict):
        return "it has no signature"
    name, value = stated.get("key"), stated.get("value")
    if stated.get("version") != VERSION or not isinstance(name, str) or not isinstance(value, str):
        return f"its signature is of a form that this version does not know: {stated.get('version')!r:.40}"
    key = keys.get(name)
    if key is None:
        return f"it is signed with another key: {name!r:.40}"
    try:
        key.verify(bytes.fromhex(value), state_root(root))
    except (InvalidSignature, ValueError):
        return f"the signature of key {name} is not over this run"
    return ""
