"""Seam: `uuid.uuid1`, `uuid4` and those of newer Pythons (`uuid6`, `uuid7`), as the agent's code uses them.

Two packages do the same in native code: uuid_utils, which LangChain uses for the IDs of its messages and runs, and
fastuuid, which LiteLLM uses.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from spanreplay.runtime.agent_patches import draws, patch_with
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source
from spanreplay.seams.machine.clock.randomness import ask

_NAMES: Final = ("uuid1", "uuid4", "uuid6", "uuid7")


def _unpack_native(text: str) -> Any:
    import uuid_utils

    return uuid_utils.UUID(text)


def _make_sources(module: str, unpack: Callable[[str], Any]) -> dict[str, Source]:
    return {name: source("random", f"{module}.{name}", pack=str, unpack=unpack) for name in _NAMES}


def _unpack_fast(text: str) -> Any:
    import fastuuid

    return fastuuid.UUID(text)


def _make_fast() -> dict[str, Source]:
    made = {
        name: source("random", f"fastuuid.{name}", pack=str, unpack=_unpack_fast)
        for name in ("uuid1", "uuid_v1mc", "uuid4", "uuid7")
    }
    for kind in ("uuid4", "uuid7"):
        name, texts = f"{kind}_bulk", f"{kind}_as_strings_bulk"
        made[name] = source(
            "random", f"fastuuid.{name}", pack=_pack_all, unpack=lambda all_: [*map(_unpack_fast, all_)]
        )
        made[texts] = source("random", f"fastuuid.{texts}")
    return made


def _pack_all(made: Iterable[Any]) -> list[str]:
    return [str(each) for each in made]


_SOURCES: Final = {
    "uuid": _make_sources("uuid", uuid.UUID),
    "uuid_utils": _make_sources("uuid_utils", _unpack_native),
    "uuid_utils.compat": _make_sources("uuid_utils.compat", uuid.UUID),
    "fastuuid": _make_fast(),
}


def install(module: Any, patches: Patches) -> None:
    """Patch one of these modules; `uuid_utils.compat` returns UUIDs of the standard library's class."""
    for name, shown in _SOURCES[module.__name__].items():
        real = getattr(module, name, None)
        if real is not None:
            patch_with(patches, module, name, ask(real, shown, name), draws)
