"""Alternative tiles of the product: none changes a bit, so the fastest may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from bench.ops import Place
from bench.timing import Clock
from spanreplay_kernels.ops import matmul as product
from spanreplay_kernels.ops._matmul_tma import is_readable
from spanreplay_kernels.ops.matmul import SPLIT_ROWS_MAX, Tile, matmul_triton, tile_for
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul

__all__ = ["Trial", "trials", "try_tile"]

_SHAPES: Final = (
    (1024, 4096, 1024), (1024, 4096, 512), (1024, 4096, 256), (4096, 4096, 256),
    (28_672, 4096, 4096), (4096, 4096, 4096), (1024, 4096, 4096), (4096, 4096, 1),
)  # fmt: skip
"""(N, K, M)."""


class Trial(NamedTuple):
    """One tile at one shape."""

    shape: str
    tile: Tile
    ours: Callable[[], Tensor]
    """The product with the chosen tile."""
    call: Callable[[], Tensor]
    """The product with this tile."""

    @property
    def name(self) -> str:
        """The name, unique within the section."""
        return f"{self.shape} {self.tile._asdict()}"


def trials(place: Place) -> Iterator[Trial]:
    """Yield the chosen tile, then each candidate."""
    arch = place.arch
    if arch is None:
        return
    for N, K, M in ((64, 1024, 3), (64, 128, 300), (64, 2048, 70)) if place.is_quick else _SHAPES:
        plan = plan_matmul(N, K, "bfloat16", arch)
        x, w = place.normal(1, M, K), place.normal(1, N, K).transpose(1, 2)
        chosen = tile_for(M, plan, by_tma=is_readable(w, plan))
        ours = partial(_by, chosen, x, w, plan)
        candidates = [each for each in _candidates(M, plan) if each != chosen][: 2 if place.is_quick else None]
        for tile in (chosen, *candidates):
            yield Trial(f"M={M} N={N} K={K}", tile, ours, partial(_by, tile, x, w, plan))


def try_tile(trial: Trial, clock: Clock) -> dict[str, Any]:
    """Return a tile's time, or the reason it can't run, and whether its bits equal the chosen tile's."""
    found: dict[str, Any] = {"shape": trial.shape, "tile": trial.tile._asdict()}
    try:
        found["holds"] = torch.equal(trial.call(), trial.ours())
        found["us"] = clock.measure(trial.call).microseconds
    except Exception as exc:  # noqa: BLE001 -- a tile that does not fit is a finding
        found["error"] = f"{type(exc).__name__}: {exc}"[:300]
    return found


def _by(tile: Tile, x: Tensor, w: Tensor, plan: MatmulPlan) -> Tensor:
    with mock.patch.object(product, "tile_for", partial(_always, tile)):
        return matmul_triton(x, w, None, plan)


def _always(tile: Tile, *_: object, **__: object) -> Tile:
    return tile


def _candidates(M: int, plan: MatmulPlan) -> Iterator[Tile]:
    if M <= SPLIT_ROWS_MAX:
        m = 16 if M <= 16 else 64
        for stages in (3, 4, 6, 8, 12):
            for n in (plan.tile_n_min, 2 * plan.tile_n_min):
                yield Tile(m, n, 4, stages, plan.segments > 1)
        return
    if M <= 1024:
        # Medium numbers of rows: try split-K and smaller tiles
        for m in (32, 64, 128):
            for stages in (4, 6, 8):
                yield Tile(m, plan.tile_n_min, 4, stages)
                if plan.segments > 1:
                    yield Tile(m, plan.tile_n_min, 4, stages, is_split=True)
        return
    for m, n in ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256)):
        for stages in (3, 4, 5):
            yield Tile(m, n, 8, stages, is_persistent=True)
    yield Tile(128, 128, 4, 4, is_persistent=True)
    yield Tile(128, 128, 8, 4)
