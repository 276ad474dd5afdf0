"""The matrix that is compiled without a GPU: every operation, architecture and dtype, over many numbers of rows.

`python -m spanreplay_kernels aot` prints a line per kernel (with `--json` a document), and exits with 1 if a kernel
uses too much shared memory, spills registers, multiplies with another instruction than planned, ignores an option of
its launch, or is recompiled for a number of rows that has the same tile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._tile import IS_INTERPRETED
from spanreplay_kernels.ops.activation import silu_mul_triton
from spanreplay_kernels.ops.attention import attention_triton
from spanreplay_kernels.ops.grouped import grouped_mm_triton
from spanreplay_kernels.ops.matmul import matmul_triton
from spanreplay_kernels.ops.mean import sum_triton
from spanreplay_kernels.ops.permute import combine_triton, permute_triton
from spanreplay_kernels.ops.rms_norm import rms_norm_triton
from spanreplay_kernels.ops.rope import rope_triton
from spanreplay_kernels.ops.route import route_triton
from spanreplay_kernels.ops.sampling import sample_triton
from spanreplay_kernels.ops.scaled import scaled_mm_triton
from spanreplay_kernels.ops.softmax import gather_logprob_triton, softmax_triton
from spanreplay_kernels.plans.arch import ARCHS, CPU, Arch, Mma
from spanreplay_kernels.plans.launch import Launch, captured
from spanreplay_kernels.plans.operands import dtype_name
from spanreplay_kernels.plans.plan import FP8_GROUP, Plan, RowPlan, plan_attention, plan_matmul, plan_rows, plan_scaled
from spanreplay_kernels.proof.aot import compile_launch, find_problems, specialisation

__all__ = ["CASES", "Case", "main"]

ROWS: Final = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 4096)
GPUS: Final = tuple(arch for arch in ARCHS.values() if arch is not CPU)
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
Call = Callable[[Arch, torch.dtype, int], Plan | None]


class Case(NamedTuple):
    """One operation at one shape."""

    op: str
    shape: str
    call: Call
    """(arch, dtype, rows) → the plan with which it launched kernels on device `meta`; None if it has none."""
    since: int = 0
    """The lowest compute capability that supports it."""


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _matmul(n: int, k: int, *, is_transposed: bool = True, has_bias: bool = False) -> Call:
    """Launch a product; w is (N, K) transposed, as `linear` passes it, or (K, N)."""

    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        plan = plan_matmul(n, k, dtype_name(_empty(1, dtype=dtype)), arch)
        w = _empty(1, n, k, dtype=dtype).transpose(1, 2) if is_transposed else _empty(1, k, n, dtype=dtype)
        bias = _empty(n, dtype=dtype) if has_bias else None
        matmul_triton(_empty(1, rows, k, dtype=dtype), w, bias, plan)
        return plan

    return call


def _bmm(batch: int, n: int, k: int) -> Call:
    """Launch a batched product."""

    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        plan = plan_matmul(n, k, dtype_name(_empty(1, dtype=dtype)), arch)
        matmul_triton(_empty(batch, rows, k, dtype=dtype), _empty(batch, k, n, dtype=dtype), None, plan)
        return plan

    return call


def _grouped(experts: int, n: int, k: int, *, is_transposed: bool = True) -> Call:
    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        plan = plan_matmul(n, k, dtype_name(_empty(1, dtype=dtype)), arch)
        w = _empty(experts, n, k, dtype=dtype).transpose(1, 2) if is_transposed else _empty(experts, k, n, dtype=dtype)
        grouped_mm_triton(_empty(rows, k, dtype=dtype), w, _empty(experts, dtype=torch.int32), plan)
        return plan

    return call


def _scaled(n: int, k: int, *, of_blocks: bool = False) -> Call:
    """Launch a scaled fp8 product; the dtype is that of the result."""

    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        fp8, fp32, groups = torch.float8_e4m3fn, torch.float32, -(-k // FP8_GROUP)
        plan = plan_scaled(n, k, dtype_name(_empty(1, dtype=fp8)), arch)
        of_x, of_w = ((rows, groups), (groups, -(-n // FP8_GROUP))) if of_blocks else ((rows, 1), (1, n))
        x, w = _empty(rows, k, dtype=fp8), _empty(n, k, dtype=fp8).t()
        scaled_mm_triton(x, w, _empty(*of_x, dtype=fp32), _empty(*of_w, dtype=fp32), None, plan, dtype)
        return plan

    return call


def _rows(op: str, width: int, start: Callable[[Tensor, RowPlan], object]) -> Call:
    """Call `start` on x (rows, width) with the plan of op."""

    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        x = _empty(rows, width, dtype=dtype)
        plan = plan_rows(op, width, dtype_name(x), arch)
        start(x, plan)
        return plan

    return call


def _rms_norm(width: int, *, has_residual: bool = False) -> Call:
    return _rows("rms_norm", width, lambda x, plan: rms_norm_triton(x, x[0], 1e-6, plan, x if has_residual else None))


def _softmax(op: str, width: int, out_dtype: torch.dtype | None = None) -> Call:
    return _rows(op, width, lambda x, plan: softmax_triton(x, plan, out_dtype or x.dtype))


def _gather_logprob(width: int) -> Call:
    ids = torch.int64
    return _rows("log_softmax", width, lambda x, p: gather_logprob_triton(x, _empty(len(x), 1, dtype=ids), p))


def _mean(width: int) -> Call:
    return _rows("mean", width, lambda x, plan: sum_triton(x, plan, x.dtype))


def _route(experts: int, top_k: int) -> Call:
    return _rows("softmax", experts, lambda x, plan: route_triton(x, top_k, True, plan))


def _combine(experts: int, top_k: int, width: int) -> Call:
    """Launch the permutation to the experts and the combination back."""

    def call(_arch: Arch, dtype: torch.dtype, rows: int) -> None:
        inverse = permute_triton(_empty(rows, top_k, dtype=torch.int64), experts).inverse
        combine_triton(_empty(rows * top_k, width, dtype=dtype), inverse, _empty(rows, top_k, dtype=torch.float32))

    return call


def _sample(width: int, *, is_cut: bool = False) -> Call:
    def call(_arch: Arch, dtype: torch.dtype, rows: int) -> None:
        seeds, temperature = _empty(rows, dtype=torch.int64), _empty(rows, dtype=torch.float32)
        top_k, top_p = (seeds, temperature) if is_cut else (None, None)
        sample_triton(_empty(rows, width, dtype=dtype), seeds, seeds, temperature, top_k, top_p)

    return call


def _silu_mul(width: int) -> Call:
    def call(_arch: Arch, dtype: torch.dtype, rows: int) -> None:
        silu_mul_triton(*_empty(rows, 2 * width, dtype=dtype).chunk(2, -1))

    return call


def _rope(heads: int, head_dim: int) -> Call:
    def call(_arch: Arch, dtype: torch.dtype, rows: int) -> None:
        cos = _empty(1, rows, head_dim, dtype=dtype)
        rope_triton(_empty(1, rows, heads, head_dim, dtype=dtype).transpose(1, 2), cos, cos)

    return call


def _attention(heads: int, head_dim: int, *, page: int | None = None, window: int | None = None) -> Call:
    """Launch a prefill of packed sequences and a decode from pages; if a page size is given, both from pages."""

    def call(arch: Arch, dtype: torch.dtype, rows: int) -> Plan:
        q, keys = _empty(rows, 4 * heads, head_dim, dtype=dtype), _empty(rows + 1000, heads, head_dim, dtype=dtype)
        pages = _empty(9, page or 16, heads, head_dim, dtype=dtype)
        cu, lengths, table = (_empty(*size, dtype=torch.int32) for size in ((rows + 1,), (rows,), (rows, rows + 60)))
        plan = plan_attention(head_dim, dtype_name(q), arch)
        cached = {"lengths": lengths, "block_table": table, "max_len_k": 16 * (rows + 60)}
        if page is None:
            attention_triton(
                q, keys, keys, plan, cu_seqlens_q=cu, lengths=cu, scale=0.1, window=window, by_splits=False
            )  # fmt: skip
        for is_split in (True,) if page is None else (False, True):
            attention_triton(
                q, pages, pages, plan, cu_seqlens_q=None, **cached, scale=0.1, window=window, by_splits=is_split
            )  # fmt: skip
        return plan

    return call


CASES: Final = (
    Case("matmul", "4096x4096", _matmul(4096, 4096)),
    Case("matmul", "1024x4096", _matmul(1024, 4096)),
    Case("matmul", "28672x4096", _matmul(28_672, 4096)),
    Case("matmul", "2048x2048, w as it stands, bias", _matmul(2048, 2048, is_transposed=False, has_bias=True)),
    Case("matmul", "1000x1100", _matmul(1000, 1100)),
    Case("matmul", "37x101, bias", _matmul(37, 101, has_bias=True)),
    Case("bmm", "8 of 512x1024", _bmm(8, 512, 1024)),
    Case("bmm", "3 of 37x1101", _bmm(3, 37, 1101)),
    Case("grouped_mm", "128x1536x2048", _grouped(128, 1536, 2048)),
    Case("grouped_mm", "8x14336x4096", _grouped(8, 14_336, 4096)),
    Case("grouped_mm", "8x2048x768, w as it stands", _grouped(8, 2048, 768, is_transposed=False)),
    Case("grouped_mm", "5x37x101", _grouped(5, 37, 101)),
    Case("scaled_mm", "4096x4096, scales of blocks", _scaled(4096, 4096, of_blocks=True), since=89),
    Case("scaled_mm", "28672x4096, scales of rows", _scaled(28_672, 4096), since=89),
    Case("scaled_mm", "1040x1120, scales of blocks", _scaled(1040, 1120, of_blocks=True), since=89),
    Case("attention", "32 over 8 heads of 128", _attention(8, 128)),
    Case("attention", "8 over 2 heads of 64", _attention(2, 64)),
    Case("attention", "16 over 4 heads of 256", _attention(4, 256)),
    Case("attention", "32 over 8 heads of 128 in pages of 64", _attention(8, 128, page=64)),
    Case("attention", "20 over 5 heads of 80, window", _attention(5, 80, window=4096)),
    Case("attention", "8 over 2 heads of 32", _attention(2, 32)),
    Case("rms_norm", "4096, residual", _rms_norm(4096, has_residual=True)),
    Case("rms_norm", "128", _rms_norm(128)),
    Case("rms_norm", "1003", _rms_norm(1003)),
    Case("rms_norm", "16384, residual", _rms_norm(16_384, has_residual=True)),
    Case("rms_norm", "40000, residual", _rms_norm(40_000, has_residual=True)),
    Case("softmax", "32768", _softmax("softmax", 32_768)),
    Case("softmax", "1000", _softmax("softmax", 1000)),
    Case("softmax", "50257", _softmax("softmax", 50_257)),
    Case("log_softmax", "151936 to fp32", _softmax("log_softmax", 151_936, torch.float32)),
    Case("log_softmax", "32000 to fp32", _softmax("log_softmax", 32_000, torch.float32)),
    Case("log_softmax", "64", _softmax("log_softmax", 64)),
    Case("gather_logprob", "151936", _gather_logprob(151_936)),
    Case("gather_logprob", "32000", _gather_logprob(32_000)),
    Case("gather_logprob", "16384", _gather_logprob(16_384)),
    Case("mean", "4096", _mean(4096)),
    Case("mean", "100", _mean(100)),
    Case("mean", "32768", _mean(32_768)),
    Case("silu_mul", "14336", _silu_mul(14_336)),
    Case("rope", "32x128", _rope(32, 128)),
    Case("rope", "5x96", _rope(5, 96)),
    Case("route", "8 of 128", _route(128, 8)),
    Case("route", "2 of 7", _route(7, 2)),
    Case("route", "8 of 4095", _route(4095, 8)),
    Case("combine", "8 of 128, 2048", _combine(128, 8, 2048)),
    Case("combine", "2 of 7, 101", _combine(7, 2, 101)),
    Case("combine", "8 of 4095, 7168", _combine(4095, 8, 7168)),
    Case("sample", "151936", _sample(151_936)),
    Case("sample", "32000, top-k and top-p", _sample(32_000, is_cut=True)),
    Case("sample", "50257", _sample(50_257)),
)
"""One entry per operation and shape; the first entry of an operation is its sample."""


class Job(NamedTuple):
    """A case for one dtype and architecture, given by index and names so that it can be sent to a process."""

    case: int
    dtype: str
    arch: str
    is_sample: bool = False

    @property
    def compiled_rows(self) -> tuple[int, ...]:
        """The numbers of rows for which kernels are compiled; specialisations are compared over all of `ROWS`."""
        return (ROWS[0], ROWS[-1]) if self.is_sample else ROWS


def run(job: Job) -> list[dict[str, Any]]:
    """Compile every kernel that a case launches, once per specialisation; return one record per kernel."""
    case, arch, dtype = CASES[job.case], ARCHS[job.arch], getattr(torch, job.dtype)
    launches: dict[str, Launch] = {}
    rows_of: dict[str, list[int]] = {}
    planned: Mma | None = None
    for rows in ROWS:
        with captured() as found:
            plan = case.call(arch, dtype, rows)
        planned = getattr(plan, "mma", None)
        for each in found:
            key = specialisation(each, arch)
            launches.setdefault(key, each)
            rows_of.setdefault(key, []).append(rows)
    again = _find_respecialised(launches, rows_of)
    wanted = {key: each for key, each in launches.items() if {*rows_of[key]} & {*job.compiled_rows} or key in again}
    records = [_record(job, each, rows_of[key], planned, again.get(key)) for key, each in wanted.items()]
    _mark_unused(planned, records, job.compiled_rows)
    return records


def _record(job: Job, each: Launch, rows: list[int], planned: Mma | None, problem: str | None) -> dict[str, Any]:
    case, arch = CASES[job.case], ARCHS[job.arch]
    named = {"op": case.op, "shape": case.shape, "dtype": job.dtype, "rows": sorted(set(rows))}
    try:
        made = compile_launch(each, arch)
    except Exception as exc:  # noqa: BLE001 -- whatever the compiler raises is the finding
        kernel = each.kernel.fn.__name__
        return {**named, "kernel": kernel, "arch": arch.name, "problems": [f"{type(exc).__name__}: {exc}"[:500]]}
    problems = find_problems(made, planned, arch) + ([problem] if problem else [])
    return {**named, **asdict(made), "planned": planned and planned.value, "problems": problems}


def _find_respecialised(launches: dict[str, Launch], rows_of: dict[str, list[int]]) -> dict[str, str]:
    """Find kernels compiled twice with equal constants and options: arguments must not reveal the batch size."""
    seen: dict[str, str] = {}
    found = {}
    for key, each in launches.items():
        options = f"{each.kernel.fn.__name__} {sorted(each.options.items())}"
        if options in seen:
            found[key] = f"is compiled anew for {rows_of[key]} rows, beside {rows_of[seen[options]]}"
        seen.setdefault(options, key)
    return found


def _mark_unused(planned: Mma | None, records: list[dict[str, Any]], rows: tuple[int, ...]) -> None:
    """Add a problem if, for some number of rows, no kernel multiplies with the planned instruction."""
    if planned is None or any("instructions" not in each for each in records):
        return
    name = "fma.rn.f32" if planned is Mma.FMA else planned.value
    served = {at for each in records if name in each["instructions"] for at in each["rows"]}
    missing = sorted({*rows} - served)
    if missing:
        records[0]["problems"].append(f"no kernel of {missing} rows multiplies by {name}")


def _jobs(ops: list[str], archs: list[str], dtypes: list[str], *, is_sample: bool) -> Iterator[Job]:
    """Yield all jobs or, for a sample, each operation's first shape: bf16 everywhere, all dtypes on sm_90."""
    sampled: set[str] = set()
    for index, case in enumerate(CASES):
        if ops and case.op not in ops:
            continue
        if is_sample and case.op in sampled:
            continue
        sampled.add(case.op)
        for arch in (each for each in archs if ARCHS[each].capability >= case.since):
            for dtype in dtypes:
                if not is_sample or dtype == "bfloat16" or arch == "sm_90":
                    yield Job(index, dtype, arch, is_sample)


def _line(record: dict[str, Any]) -> str:
    where = f"{record['op']} {record['shape']} {record['dtype']} {record['arch']} {record['kernel']}"
    rows = f"rows {record['rows'][0]}–{record['rows'][-1]}"
    if "instructions" not in record:
        return f"{where}, {rows}: {record['problems'][0]}\n"
    counts = " ".join(f"{name}×{count}" for name, count in record["instructions"].items())
    used = f"shared {record['shared_bytes']} B, {record['registers']} registers, {counts or 'no instruction of note'}"
    return f"{where}, {rows}: {'; '.join(record['problems']) or 'ok'} ({used})\n"


def main(arguments: list[str]) -> int:
    """Run `aot`; return 1 if a kernel has a problem or none was compiled."""
    parser = argparse.ArgumentParser(prog="python -m spanreplay_kernels aot", description=__doc__)
    parser.add_argument("--op", action="append", default=[], choices=sorted({case.op for case in CASES}))
    parser.add_argument("--arch", action="append", default=[], choices=[arch.name for arch in GPUS])
    parser.add_argument("--dtype", action="append", default=[], choices=[str(each)[6:] for each in DTYPES])
    parser.add_argument(
        "--sample", action="store_true", help="one shape an operation, few and many rows; bf16, and all dtypes on sm_90"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document in place of lines")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    options = parser.parse_args(arguments)
    if IS_INTERPRETED:
        raise UnsupportedInput("aot", "TRITON_INTERPRET is set, nothing would be compiled", hint="unset it")
    archs = options.arch or [arch.name for arch in GPUS]
    dtypes = options.dtype or [str(each)[6:] for each in DTYPES]
    records: list[dict[str, Any]] = []
    # Spawned, not forked: torch's threads don't survive a fork
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(run, _jobs(options.op, archs, dtypes, is_sample=options.sample)):
            records += found
            if not options.json:
                sys.stdout.writelines(map(_line, found))
    if options.json:
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        sys.stdout.write(json.dumps({"versions": versions, "kernels": records}, indent=1, ensure_ascii=False) + "\n")
    return 1 if not records or any(each["problems"] for each in records) else 0
