"""Tiles of the product that could be taken instead: none changes a bit, so that the fastest may be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from unittest import mock

import torch

from bench.ops import Place
from bench.timing import Clock
from spanreplay_kernels.ops import matmul as product
from spanreplay_kernels.ops._matmul_tma import is_readable
from spanreplay_kernels.ops.matmul import Tile, matmul_triton, tile_for
from spanreplay_kernels.plan import MatmulPlan, plan_matmul

__all__ = ["measure_tiles"]

_SHAPES: Final = ((28_672, 4096, 4096), (4096, 4096, 4096), (1024, 4096, 4096), (4096, 4096, 256), (4096, 4096, 1))
"""(N, K, M)."""


def measure_tiles(place: Place, clock: Clock) -> Iterator[dict[str, Any]]:
    """The chosen tile, then each candidate: its time, or why it cannot run, and whether its bits are the same."""
    arch = place.arch
    if arch is None:
        return
    for N, K, M in ((64, 1024, 3), (64, 128, 300)) if place.is_quick else _SHAPES:
        plan = plan_matmul(N, K, "bfloat16", arch)
        x, w = place.normal(1, M, K), place.normal(1, N, K).transpose(1, 2)
        expected = matmul_triton(x, w, None, plan)
        candidates = list(_candidates(M, plan))[: 2 if place.is_quick else None]
        for tile in (tile_for(M, plan, by_tma=is_readable(w, plan)), *candidates):
            found: dict[str, Any] = {"shape": f"M={M} N={N} K={K}", "tile": tile._asdict()}
            try:
                with mock.patch.object(product, "tile_for", partial(_always, tile)):
                    found["holds"] = torch.equal(matmul_triton(x, w, None, plan), expected)
                    found["us"] = clock.measure(partial(matmul_triton, x, w, None, plan)).microseconds
            except Exception as exc:  # noqa: BLE001 -- a tile that does not fit is a finding
                found["error"] = f"{type(exc).__name__}: {exc}"[:300]
            yield found


def _always(tile: Tile, *_: object, **__: object) -> Tile:
    return tile


def _candidates(M: int, plan: MatmulPlan) -> Iterator[Tile]:
    if M <= 256:
        m = 16 if M <= 16 else 128
        for stages in (3, 4, 6, 8, 12):
            for n in (plan.tile_n_min, 2 * plan.tile_n_min):
                yield Tile(m, n, 4, stages, plan.segments > 1)
        return
    for m, n in ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256)):
        for stages in (3, 4, 5):
            yield Tile(m, n, 8, stages, is_persistent=True)
    yield Tile(128, 128, 4, 4, is_persistent=True)
    yield Tile(128, 128, 8, 4)
