"""Seam: functions of native code that draw random values: salts, keys, signatures, `ssl.RAND_bytes`.

Python never sees the bytes that they draw, so their results are recorded, sealed like those of `os.urandom`. Each is
recorded with a hash of what the function was given: if the program now signs another message, or asks for another kind
of key, the result is drawn anew, so that the difference shows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

from spanreplay.model import guard
from spanreplay.runtime.agent_patches import asks, patch_with, read
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source
from spanreplay.seams.machine.clock.bits import pack_bytes, unpack_bytes

_getframe: Final = sys._getframe
_DEPTH_MAX: Final = 4


# ── How results are written ─────────────────────────────────────────────────────────────────────────
class _Form(NamedTuple):
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class _Drawn(bytes):
    """What a function has given; itself the random bytes, if they are bytes: redaction learns these as a secret."""

    given: str
    result: Any
    written: Any = None

    def __new__(cls, given: str, result: Any) -> _Drawn:
        """`given`: the hash of what the function was given."""
        made = super().__new__(cls, result if type(result) is bytes else b"")
        made.given, made.result = given, result
        return made


def _pack_key(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return pack_bytes(key.private_bytes(s.Encoding.DER, s.PrivateFormat.PKCS8, s.NoEncryption()))


def _unpack_key(written: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    return load_der_private_key(unpack_bytes(written), None, unsafe_skip_rsa_key_validation=True)


def _pack_parts(parts: Iterable[bytes]) -> list[str]:
    return [pack_bytes(each) for each in parts]


def _unpack_parts(written: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(map(unpack_bytes, written))


_TEXT: Final = _Form(str, str)
_BYTES: Final = _Form(pack_bytes, unpack_bytes)
_KEY: Final = _Form(_pack_key, _unpack_key)
_PARTS: Final = _Form(_pack_parts, _unpack_parts)

_KEYS: Final = ("ed25519", "ed448", "x25519", "x448")
_AEAD: Final = ("AESGCM", "AESCCM", "AESOCB3", "AESGCMSIV", "AESSIV", "ChaCha20Poly1305")
_ROWS: Final[dict[str, dict[str, _Form]]] = {
    "ssl": {"RAND_bytes": _BYTES},
    "crypt": {"mksalt": _TEXT},
    "bcrypt": {"gensalt": _BYTES},
    "nacl.bindings": {
        "crypto_pwhash_str_alg": _BYTES,
        "crypto_pwhash_scryptsalsa208sha256_str": _BYTES,
        "crypto_box_seal": _BYTES,
        "crypto_box_keypair": _PARTS,
        "crypto_sign_keypair": _PARTS,
        "crypto_kx_keypair": _PARTS,
        "crypto_secretstream_xchacha20poly1305_keygen": _BYTES,
    },
    "cryptography.hazmat.bindings._rust": {
        **{f"openssl.{name}.generate_key": _KEY for name in _KEYS},
        **{f"openssl.{name}.generate_private_key": _KEY for name in ("rsa", "ec")},
        "openssl.dsa.DSAParameters.generate_private_key": _KEY,
        "openssl.dh.DHParameters.generate_private_key": _KEY,
        **{f"openssl.aead.{name}.generate_key": _BYTES for name in _AEAD},
        "openssl.ec.ECPrivateKey.sign": _BYTES,
        "openssl.dsa.DSAPrivateKey.sign": _BYTES,
        "openssl.rsa.RSAPrivateKey.sign": _BYTES,
        "openssl.rsa.RSAPublicKey.encrypt": _BYTES,
    },
}
"""Module → function, or method of a class, with the form of its results."""
_FIXED: Final = ("sign", "PKCS1v15")
"""A method that draws nothing with this padding."""


# ── What they were given ────────────────────────────────────────────────────────────────────────────
def _hash(args: Iterable[Any], named: dict[str, Any]) -> str:
    """Return a hash of arguments; of an object whose content is unknown only its type counts."""
    made = hashlib.sha256()
    for part in (*_tell(args, 0), *_tell(named, 0)):
        made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()


def _tell(value: Any, depth: int) -> Iterator[bytes]:
    yield type(value).__qualname__.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        yield bytes(value)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value).encode()
    elif depth < _DEPTH_MAX:
        yield from _tell_members(value, depth + 1)


def _tell_members(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, dict):
        for name, each in sorted(value.items()):
            yield from _tell(name, depth)
            yield from _tell(each, depth)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tell(each, depth)
    elif hasattr(value, "public_key"):
        yield _encode_public(value.public_key())
    elif hasattr(value, "public_bytes"):
        yield _encode_public(value)
    elif hasattr(value, "__dict__"):
        yield from _tell_members(dict(vars(value)), depth)


def _encode_public(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    return bytes(key.public_bytes(s.Encoding.DER, s.PublicFormat.SubjectPublicKeyInfo))


# ── Patches ─────────────────────────────────────────────────────────────────────────────────────────
class _Row:
    """One function: how its results are recorded."""

    def __init__(self, name: str, form: _Form) -> None:
        self._form = form
        self._shown = source("random", name, is_secret=True, pack=_write, unpack=self._unpack)

    def _unpack(self, written: list[Any]) -> _Drawn:
        return _Drawn(written[0], self._form.unpack(written[1]) if written[0] else None)

    def read(self, given: str, draw: Callable[[], Any]) -> Any:
        """Return the recorded result, if it belongs to the same arguments; else a new one."""

        def draw_now() -> _Drawn:
            drawn = _Drawn(given, draw())
            drawn.written = guard.guarded("a random value of native code", self._form.pack, drawn.result)
            return drawn

        found = read(self._shown, draw_now)
        return found.result if found.given == given and found.result is not None else draw()


def _write(drawn: _Drawn) -> list[Any]:
    return ["", []] if drawn.written is None else [drawn.given, drawn.written]


def _fixes(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    method, padding = _FIXED
    return name == method and any(type(each).__name__ == padding for each in (*args, *named.values()))


def _ask(real: Any, name: str, row: _Row) -> Callable[..., Any]:
    """Return a function that gives the recorded result of `real`, if that was given the same."""

    def ask(*args: Any, **named: Any) -> Any:
        if _fixes(name, args, named):
            return real(*args, **named)
        given = guard.guarded("the arguments of native code", _hash, args, named) or ""
        return row.read(given, lambda: real(*args, **named))

    return ask


def _patch_function(patches: Patches, owner: ModuleType, name: str, row: _Row, package: str) -> None:
    """Patch a function, and its copies in the modules of its package."""
    real = getattr(owner, name)
    patch_with(patches, owner, name, _ask(real, name, row))
    for module in tuple(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and str(names.get("__name__")).partition(".")[0] == package:
            for each in [each for each, value in names.items() if value is real]:
                patches.replace(module, each, getattr(owner, name))


def _patch_method(patches: Patches, cls: Any, name: str, row: _Row) -> None:
    found = vars(cls)[name]
    is_static = isinstance(found, staticmethod)
    real = getattr(cls, name)
    ask = _ask(real, name, row)

    def method(*args: Any, **named: Any) -> Any:
        return (ask if asks(_getframe(1)) else real)(*args, **named)

    method.__name__, method.__qualname__, method.__doc__ = name, f"{cls.__qualname__}.{name}", real.__doc__
    patches.replace(cls, name, staticmethod(method) if is_static else method)


def install(module: Any, patches: Patches) -> None:
    """Patch one of these modules; what its version does not have is left out."""
    package = module.__name__.partition(".")[0]
    for path, form in _ROWS[module.__name__].items():
        *owners, name = path.split(".")
        owner = module
        for each in owners:
            owner = getattr(owner, each, None)
        if not hasattr(owner, name):
            continue
        row = _Row(f"{package}.{path}", form)
        if isinstance(owner, ModuleType):
            _patch_function(patches, owner, name, row, package)
        else:
            _patch_method(patches, owner, name, row)
