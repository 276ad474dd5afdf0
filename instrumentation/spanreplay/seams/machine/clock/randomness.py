"""Seam: `random` as the agent's code uses it: module functions, `SystemRandom`, and generators without a seed.

Values are recorded, not the seed of the module's generator, because libraries draw from it too, at times of their own.
Functions that pick from the caller's objects are recorded as positions. A generator of the agent's that is seeded from
the operating system gets a recorded seed instead: one read, however many values it draws.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, Final

from spanreplay.runtime.agent_patches import draws, patch_bare, patch_with, picks, read, read_fitting
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source
from spanreplay.seams.machine.clock.bits import pack_bytes, unpack_bytes

_getframe: Final = sys._getframe
_SEED_BITS: Final = 256
_VALUES: Final = (
    "random",
    "uniform",
    "triangular",
    "randint",
    "randrange",
    "getrandbits",
    "gauss",
    "normalvariate",
    "lognormvariate",
    "expovariate",
    "vonmisesvariate",
    "gammavariate",
    "betavariate",
    "paretovariate",
    "weibullvariate",
    "binomialvariate",
)
_system: Final = random.SystemRandom()

SEED: Final = source("random", "random.seed", pack=hex, unpack=lambda text: int(text, 16))


def _sources(prefix: str, *, is_secret: bool) -> dict[str, Source]:
    names = (*_VALUES, "choice", "choices", "sample", "shuffle")
    made = {name: source("random", f"{prefix}.{name}", is_secret=is_secret) for name in names}
    made["randbytes"] = source(
        "random", f"{prefix}.randbytes", is_secret=is_secret, pack=pack_bytes, unpack=unpack_bytes
    )
    return made


_MODULE: Final = _sources("random", is_secret=False)
_SYSTEM: Final = _sources("random.SystemRandom", is_secret=True)


def _choice(real: Any, shown: Source, population: Any) -> Any:
    places = range(len(population))
    if not places:
        return real(population)  # raises the usual error
    return population[read_fitting(shown, lambda: real(places), lambda at: _is_place(at, len(places)))]


def _choices(real: Any, shown: Source, population: Any, *args: Any, **kwargs: Any) -> Any:
    places, count = range(len(population)), kwargs.get("k", 1)
    picked = read_fitting(shown, lambda: real(places, *args, **kwargs), lambda at: _are_places(at, len(places), count))
    return [population[at] for at in picked]


def _sample(real: Any, shown: Source, population: Any, *args: Any, **kwargs: Any) -> Any:
    counts = kwargs.get("counts")
    if counts is not None or not hasattr(population, "__getitem__"):
        return real(population, *args, **kwargs)
    places, count = range(len(population)), args[0] if args else kwargs.get("k")
    picked = read_fitting(shown, lambda: real(places, *args, **kwargs), lambda at: _are_places(at, len(places), count))
    return [population[at] for at in picked]


def _shuffle(real: Any, shown: Source, x: Any) -> None:
    def draw() -> list[int]:
        places = list(range(len(x)))
        real(places)
        return places

    order = read_fitting(shown, draw, lambda at: _are_places(at, len(x), len(x)))
    before = list(x)
    for to, at in enumerate(order):
        x[to] = before[at]


def _is_place(at: Any, size: int) -> bool:
    return type(at) is int and 0 <= at < size


def _are_places(found: Any, size: int, count: Any) -> bool:
    """Whether a recorded pick fits: `count` positions below `size`. The program may have changed since."""
    return isinstance(found, list) and len(found) == count and all(_is_place(at, size) for at in found)


_PICKS: Final[dict[str, Callable[..., Any]]] = {
    "choice": _choice,
    "choices": _choices,
    "sample": _sample,
    "shuffle": _shuffle,
}


def ask(real: Any, shown: Source, name: str) -> Callable[..., Any]:
    """Return a function that reads one recorded value of `real`, named `name` in `random`."""
    pick = _PICKS.get(name)
    if pick is None:
        return lambda *args, **kwargs: read(shown, lambda: real(*args, **kwargs))
    return lambda *args, **kwargs: pick(real, shown, *args, **kwargs)


def _patch_module(patches: Patches) -> None:
    for name, shown in _MODULE.items():
        real = getattr(random, name, None)
        if name == "random":
            patch_bare(patches, random, name, shown, None)
        elif real is not None:
            patch_with(patches, random, name, ask(real, shown, name), picks if name in _PICKS else draws)
    reseed = random.seed

    def seed(*args: Any, **kwargs: Any) -> None:
        if args[:1] not in ((), (None,)) or kwargs.get("a") is not None:
            reseed(*args, **kwargs)
            return
        reseed(read(SEED, lambda: _system.getrandbits(_SEED_BITS)))

    patch_with(patches, random, "seed", seed, draws)


def _patch_system_random(patches: Patches) -> None:
    for name, shown in _SYSTEM.items():
        real = getattr(random.SystemRandom, name, None)
        if real is None:
            continue
        patches.replace(random.SystemRandom, name, _method(name, real, shown))


def _method(name: str, real: Any, shown: Source) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not draws(_getframe(1)):
            return real(self, *args, **kwargs)
        return ask(real.__get__(self, type(self)), shown, name)(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"SystemRandom.{name}"
    method.__doc__ = real.__doc__
    return method


def _patch_generators(patches: Patches) -> None:
    real_init, real_seed = random.Random.__init__, random.Random.seed

    def init(self: Any, x: Any = None) -> None:
        if x is None and not isinstance(self, random.SystemRandom) and draws(_getframe(1)):
            x = read(SEED, lambda: _system.getrandbits(_SEED_BITS))
        real_init(self, x)

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        if a is None and draws(_getframe(1)):
            a = read(SEED, lambda: _system.getrandbits(_SEED_BITS))
        real_seed(self, a, version)

    init.__name__, init.__qualname__, init.__doc__ = "__init__", "Random.__init__", real_init.__doc__
    seed.__qualname__, seed.__doc__ = "Random.seed", real_seed.__doc__
    patches.replace(random.Random, "__init__", init)
    patches.replace(random.Random, "seed", seed)


def install(module: Any, patches: Patches) -> None:
    """Patch `random`."""
    _patch_module(patches)
    _patch_system_random(patches)
    _patch_generators(patches)
