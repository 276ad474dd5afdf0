"""Compiles a call's kernels in parallel before it measures; one after another would take minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import torch

from bench.checks import CHECKS, certificates
from bench.end_to_end import decode_steps
from bench.ops import SECTIONS, Case, Place
from bench.tiles import trials
from spanreplay_kernels import subjects
from spanreplay_kernels.plans.arch import ARCHS, pretended
from spanreplay_kernels.plans.launch import Launch, captured
from spanreplay_kernels.proof.aot import specialisation, targeting

__all__ = ["prepare"]

_ROWS: Final = (1, 16, 17, 32, 33, 64, 65, 128, 129, 512, 1024)
"""Batch sizes of certificates at which the tile changes."""


class Job(NamedTuple):
    """A kernel to compile, given as the n-th launch of a section so that it can be sent to a process."""

    section: str
    arch: str
    is_quick: bool
    n: int = -1


def prepare(names: list[str], arch: str, *, is_quick: bool, processes: int) -> dict[str, Any]:
    """Compile every kernel that the sections launch into Triton's disk cache; return count, seconds and failures.

    Nothing is computed: launches are collected on tensors of device `meta`. `later`: cases that read values; their
    kernels are compiled when they run.
    """
    started = time.monotonic()
    failed: dict[str, str] = {}
    later: dict[str, str] = {}
    # Spawned, not forked: neither torch's threads nor a GPU context survive a fork
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs: dict[str, Job] = {}
        for found, problems in pool.map(find, [Job(name, arch, is_quick) for name in names]):
            later |= problems
            for key, job in found:
                jobs.setdefault(key, job)
        for problem in pool.map(build, jobs.values()):
            failed |= problem
    return {"kernels": len(jobs), "seconds": round(time.monotonic() - started, 1), "failed": failed, "later": later}


def find(job: Job) -> tuple[list[tuple[str, Job]], dict[str, str]]:
    """Return (specialisation, job) of every launch of a section, and the cases that can't run on `meta`."""
    starts, failed = _starts(job.section, job.arch, job.is_quick)
    arch = ARCHS[job.arch]
    return [(specialisation(each, arch), job._replace(n=n)) for n, each in enumerate(starts)], failed


def build(job: Job) -> dict[str, str]:
    """Compile one kernel; return the compiler's error, if any, under the kernel's name."""
    each = _starts(job.section, job.arch, job.is_quick)[0][job.n]
    try:
        with targeting(ARCHS[job.arch]):
            each.kernel.warmup(*each.args, grid=each.grid, **each.options)
    except Exception as exc:  # noqa: BLE001 -- the section that launches it will report it again
        return {f"{job.section}: {each.kernel.fn.__name__}": f"{type(exc).__name__}: {exc}"[:300]}
    return {}


@lru_cache(maxsize=32)
def _starts(section: str, arch: str, is_quick: bool) -> tuple[list[Launch], dict[str, str]]:
    """Return all launches of a section, the same in every process."""
    failed: dict[str, str] = {}
    with captured() as starts, pretended(ARCHS[arch]):
        for n, call in enumerate(_calls(section, Place(torch.device("meta"), is_quick))):
            try:
                call()
            except Exception as exc:  # noqa: BLE001 -- cases that read values can't run on meta; compiled later
                failed[f"{section}: case {n}"] = f"{type(exc).__name__}: {exc}"[:300]
    return starts, failed


def _calls(section: str, place: Place) -> Iterator[Callable[[], object]]:
    if section in CHECKS:
        yield lambda: list(CHECKS[section](place))
    elif section == "tiles":
        yield from (each.call for each in trials(place))
    elif section == "certificates":
        for each in certificates(place):
            subject = subjects.find(each.op, each.shape)
            x = place.normal(each.extent.rows, subject.width, dtype=each.dtype)
            weights = [place.normal(*shape, dtype=each.dtype) for shape in subject.weights]
            for rows in sorted({min(size, len(x)) for size in (*_ROWS, len(x))}):
                yield partial(subject.ours, x[:rows], *weights)
    elif section in _CASES:
        for case in _CASES[section](place):
            yield partial(_start, case)


def _start(case: Case) -> object:
    return case.build()["ours"]()


_CASES: Final = {**SECTIONS, "K8": decode_steps}
