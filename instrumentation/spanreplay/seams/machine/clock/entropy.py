"""Seam: `os.urandom` and `secrets` as the agent's code uses them.

Such values become passwords and session keys: they are recorded sealed, and only someone with the recording's redaction
key can replay them.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay.runtime.agent_patches import draws, patch_with, read
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source
from spanreplay.seams.machine.clock.bits import pack_bytes, unpack_bytes
from spanreplay.seams.machine.clock.randomness import ask


def _secret(name: str, *, is_bytes: bool = False) -> Source:
    if is_bytes:
        return source("random", name, is_secret=True, pack=pack_bytes, unpack=unpack_bytes)
    return source("random", name, is_secret=True)


_URANDOM: Final = _secret("os.urandom", is_bytes=True)
_SECRETS: Final = {
    "token_bytes": _secret("secrets.token_bytes", is_bytes=True),
    **{name: _secret(f"secrets.{name}") for name in ("token_hex", "token_urlsafe", "randbits", "randbelow", "choice")},
}


def install(module: Any, patches: Patches) -> None:
    """Patch `os` or `secrets`."""
    if module.__name__ == "os":
        urandom = module.urandom
        patch_with(patches, module, "urandom", lambda size, /: read(_URANDOM, lambda: urandom(size)), draws)
        return
    for name, shown in _SECRETS.items():
        patch_with(patches, module, name, ask(getattr(module, name), shown, name), draws)
