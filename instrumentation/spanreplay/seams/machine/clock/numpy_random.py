"""Seam: `numpy.random` as the agent's code uses it: generators without a seed, and the functions of the module.

Arrays may be large, so values are not recorded: a generator seeded from the operating system gets a recorded seed, and
the state of the module's own generator is recorded before the agent first draws from it. Draws that a library makes
from that generator between two draws of the agent are not observed.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.agent_patches import patch_with, read, recorded_run
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source
from spanreplay.runtime.run import Run

_SEED_BITS: Final = 128
_LEGACY_SEED_BITS: Final = 32
_NOT_DRAWING: Final = frozenset({"default_rng", "seed", "get_state", "set_state", "get_bit_generator", "test"})
_system: Final = random.SystemRandom()


def _pack_state(state: Any) -> Any:
    inner = state["state"]
    return {**state, "state": {**inner, "key": inner["key"].tolist()}}


def _unpack_state(written: Any) -> Any:
    import numpy as np

    inner = written["state"]
    return {**written, "state": {**inner, "key": np.array(inner["key"], dtype=np.uint32)}}


SEED: Final = source("random", "numpy.random.seed", pack=hex, unpack=lambda text: int(text, 16))
STATE: Final = source("random", "numpy.random.state", pack=_pack_state, unpack=_unpack_state)


class _Global:
    """The module's own generator: its state is fixed once in each run."""

    def __init__(self, module: Any) -> None:
        self._get, self._set = module.get_state, module.set_state
        self._pinned: weakref.WeakSet[Run] = weakref.WeakSet()
        self._lock = make_lock()

    def pin(self) -> None:
        """Record the state, or restore the recorded one; once per run."""
        run = recorded_run()
        if run is None or run in self._pinned:
            return
        with self._lock:
            if run not in self._pinned:
                self._pinned.add(run)
                self._set(read(STATE, lambda: self._get(legacy=False)))


def _with_seed(real: Any, bits: int) -> Callable[..., Any]:
    """Wrap `real` to use a recorded seed when it gets none."""

    def ask(seed: Any = None) -> Any:
        return real(read(SEED, lambda: _system.getrandbits(bits)) if seed is None else seed)

    return ask


def _drawing(shared: _Global, real: Any) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        shared.pin()
        return real(*args, **kwargs)

    return ask


def install(module: Any, patches: Patches) -> None:
    """Patch `numpy.random`."""
    shared = _Global(module)
    for name in module.__all__:
        real = getattr(module, name)
        if name not in _NOT_DRAWING and not isinstance(real, type) and callable(real):
            patch_with(patches, module, name, _drawing(shared, real))
    patch_with(patches, module, "default_rng", _with_seed(module.default_rng, _SEED_BITS))
    patch_with(patches, module, "seed", _with_seed(module.seed, _LEGACY_SEED_BITS))
