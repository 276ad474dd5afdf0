"""Certificates that an operation at a shape, on this processor, gave a row the same bits in every batch tried.

A certificate states the trials and their results for one plan, device and set of versions; it holds for no other.
The same trials are run on controls, in which they must find differences. The first control is torch's own kernel; if it
varies with the batch, the trials are shown to work. Many of its row reductions don't vary on many devices; then the
control is the same computation in the order, or with the instructions, that a kernel tuned for speed would choose by
the number of rows. If neither control was caught, the trials prove nothing and the certificate is inconclusive. A
kernel whose last bit depends on its batch is tried as well; this shows that the comparison works, but not that the
trials are hard enough.

`python -m spanreplay_kernels certify --op matmul --shapes 4096x4096 --dtype bfloat16 --out certificate.json`
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels import subjects
from spanreplay_kernels.errors import NotInvariant, UnsupportedInput
from spanreplay_kernels.plans.arch import arch_of
from spanreplay_kernels.plans.operands import dtype_name
from spanreplay_kernels.plans.plan import Plan, hash_plans
from spanreplay_kernels.subjects import SUBJECTS, Function, Subject, plant

__all__ = ["EVERY_OFFSET", "FULL", "QUICK", "Extent", "Verdict", "certify", "main", "require"]

HOSTILE: Final = (float("nan"), float("inf"), -float("inf"), 1e30, 1e-42, -0.0)
"""Values of hostile neighbours: NaN and infinities spread, huge values overflow, denormals are flushed."""
_DIFFERENCES_MAX = 10
_SEED = 20_261_122
_ULPS_ROWS = 64
_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Verdict(Enum):
    """The verdict of a certificate."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    """The trials found no difference, but they didn't catch a control that varies either."""


@dataclass(frozen=True)
class Extent:
    """The extent of the trials."""

    sizes: tuple[int, ...]
    """Numbers of rows."""
    offsets_max: int | None
    """The most offsets in the batch per size: all if there are no more, else both ends and a sample. None: all
    offsets of every size."""
    hostile_rows: int

    @property
    def rows(self) -> int:
        """The rows of the reference batch: more than every size, and not a multiple of a tile."""
        return max(self.sizes) + 13


def _around(*sizes: int) -> tuple[int, ...]:
    return tuple(sorted({size + near for size in sizes for near in (-1, 0, 1)}))


FULL: Final = Extent((*range(1, 513), *_around(640, 768, 1000, 1024, 1152, 1280, 1536, 2047)), 8, 24)
"""Every number of rows up to 512, and those around powers of two and tile sizes up to 2048."""
EVERY_OFFSET: Final = Extent(FULL.sizes, None, FULL.hostile_rows)
"""A million trials: minutes on a GPU for a small shape, hours for a large one."""
QUICK: Final = Extent((*range(1, 18), *_around(32, 64, 128)), 3, 3)


def certify(op: str, shape: str, dtype: torch.dtype, device: str = "cpu", extent: Extent = FULL) -> dict[str, Any]:
    """Return the certificate of an operation at a shape, e.g. `matmul` at `4096x4096` (N x K), ready for JSON.

    Raises: UnsupportedInput for an unknown operation or shape.
    """
    started = time.monotonic()
    subject = subjects.find(op, shape)
    generator = torch.Generator().manual_seed(_SEED)
    x = _normal((extent.rows, subject.width), dtype, generator).to(device)
    weights = tuple(_normal(each, dtype, generator).to(device) for each in subject.weights)
    ours, trials = _differences(subject.ours, x, weights, extent)
    ours += _layout_differences(subject, x, weights)
    controls = {}
    for name, function in _controls(subject):
        found, tried = _differences(function, x, weights, extent)
        controls[name] = {"caught": len(found), "trials": tried}
    ulps = _ulps(subject, x, weights)
    is_of_dtype = dtype is not torch.float32 or subject.ulps_max == 0
    limit = subject.ulps_max if is_of_dtype else subject.ulps_max_fp32
    is_accurate = limit is None or ulps <= limit
    plans = subject.plans(dtype_name(x), arch_of(x.device))
    verdict = Verdict.PASSED if _is_proof(controls) else Verdict.INCONCLUSIVE
    return {
        "format": 2,
        "op": op,
        "shape": shape,
        "dtype": dtype_name(x),
        **_environment(x.device),
        "plans": [_describe_plan(plan) for plan in plans],
        "plan_hash": hash_plans(*plans),
        "tried": _describe(extent, trials, subject),
        "differences": len(ours),
        "first_differences": ours[:_DIFFERENCES_MAX],
        "accuracy": {"ulps_max": ulps, "ulps_limit": limit, "rows": min(_ULPS_ROWS, extent.rows), "of": "x, w ≥ 0"},
        "controls": controls,
        "control": _say(controls),
        "verdict": (verdict if is_accurate and not ours else Verdict.FAILED).value,
        "seconds": round(time.monotonic() - started, 3),
    }


def _controls(subject: Subject) -> Iterator[tuple[str, Function]]:
    """Yield kernels that vary: torch's own, which may, one that depends on the number of rows, and a planted one."""
    yield "stock", subject.stock
    if subject.varies is not None:
        yield "by rows", subject.varies
    yield "planted", plant(subject.stock)


def _is_proof(controls: dict[str, dict[str, int]]) -> bool:
    real = any(each["caught"] for name, each in controls.items() if name != "planted")
    return real and controls["planted"]["caught"] > 0


def require(certificate: dict[str, Any]) -> None:
    """Check a certificate. Raises: NotInvariant unless its verdict is `passed`."""
    if certificate["verdict"] != Verdict.PASSED.value:
        what = f"{certificate['op']} {certificate['shape']} {certificate['dtype']} on {certificate['device']}"
        found = f"{certificate['differences']} differences, {certificate['accuracy']['ulps_max']:.2f} ulps"
        raise NotInvariant(f"{what}: {certificate['verdict']} ({found}; {certificate['control']}); use another kernel")


def _differences(function: Function, x: Tensor, weights: tuple[Tensor, ...], extent: Extent) -> tuple[list[str], int]:
    """Return (trials in which a row had different bits than in the whole batch, number of trials)."""
    whole = function(x, *weights)
    found, trials = [], 0
    for size, start in _places(extent):
        trials += 1
        if not _is_same(function(x[start : start + size], *weights), whole[start : start + size]):
            found.append(f"rows {start}–{start + size - 1} alone")
    rows = x.shape[0]
    for row in range(0, rows, max(1, rows // extent.hostile_rows)):
        for size in (min(3, rows), min(40, rows), rows):
            start = min(max(0, row - size // 2), rows - size)
            batch = _with_hostile_neighbours(x[start : start + size], row - start)
            trials += 1
            if not _is_same(function(batch, *weights)[row - start], whole[row]):
                found.append(f"row {row} among hostile rows {start}–{start + size - 1}")
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(_SEED)).to(x.device)
    for name, again in (("in another order", x[order]), ("again", x.clone())):
        trials += 1
        expected = whole[order] if name != "again" else whole
        if not _is_same(function(again, *weights), expected):
            found.append(f"all rows {name}")
    return found, trials


def _layout_differences(subject: Subject, x: Tensor, weights: tuple[Tensor, ...]) -> list[str]:
    """Return the layouts that change bits: x or the first weight strided, transposed or unaligned, and other forms."""
    x = x[:33]
    expected = subject.ours(x, *weights)
    found = [
        f"x {name}" for name, each in _layouts(x) if not _is_same(subject.ours(each, *weights), expected)
    ]  # fmt: skip
    if weights and weights[0].dim() == 2:
        for name, each in _layouts(weights[0]):
            if not _is_same(subject.ours(x, each, *weights[1:]), expected):
                found.append(f"weight {name}")
    found += [name for name, form in subject.forms if not _is_same(form(x, *weights), expected)]
    return found


def _layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    rows, columns = x.shape
    strided = x.new_empty(rows, 2 * columns)[:, ::2]
    unaligned = x.new_empty(rows * columns + 1)[1:].view(rows, columns)
    for name, each in (("strided", strided), ("transposed", x.new_empty(columns, rows).t()), ("unaligned", unaligned)):
        yield name, each.copy_(x)


def _places(extent: Extent) -> Iterator[tuple[int, int]]:
    """Yield (number of rows, first row) of every trial; the sample is the same on every machine."""
    generator = torch.Generator().manual_seed(_SEED)
    for size in extent.sizes:
        last = extent.rows - size
        if size == 1 or extent.offsets_max is None or last < extent.offsets_max:
            starts = set(range(last + 1))
        else:
            inner = 1 + torch.randperm(last - 1, generator=generator)[: extent.offsets_max - 2]
            starts = {0, last, *inner.tolist()}
        yield from ((size, start) for start in sorted(starts))


def _with_hostile_neighbours(x: Tensor, row: int) -> Tensor:
    values = torch.tensor(HOSTILE, dtype=torch.float32).to(x.dtype).to(x.device)
    changed = values[torch.arange(x.shape[0], device=x.device) % len(HOSTILE)][:, None].expand_as(x).clone()
    changed[row] = x[row]
    return changed


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are equal bit by bit: NaN equals the same NaN, and −0 is not 0."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def _ulps(subject: Subject, x: Tensor, weights: tuple[Tensor, ...]) -> float:
    """Return the largest error against fp64, in units in the last place, on operands without cancellation.

    For integer results, return the number of rows that differ.
    """
    x, weights = x[:_ULPS_ROWS].abs(), tuple(each.abs() for each in weights)
    result = subject.ours(x, *weights)
    exact = (subject.exact or subject.stock)(x.double(), *(each.double() for each in weights))
    if not result.dtype.is_floating_point:
        return float((result != exact).sum())
    kind = torch.finfo(result.dtype)
    spacing = kind.eps * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=kind.smallest_normal))))
    return float(((result.double() - exact).abs() / spacing).max())


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _describe_plan(plan: Plan) -> dict[str, Any]:
    return {name: each.name if isinstance(each, Enum) else each for name, each in asdict(plan).items()}


def _describe(extent: Extent, trials: int, subject: Subject) -> dict[str, Any]:
    sizes = sorted(extent.sizes)
    contiguous = next((n for n, size in enumerate(sizes, 1) if size != n), len(sizes) + 1) - 1
    return {
        "trials": trials,
        "every_size_to": contiguous,
        "other_sizes": sizes[contiguous:],
        "batch_rows": extent.rows,
        "offsets": _describe_offsets(extent),
        "hostile_values": [str(value) for value in HOSTILE],
        "layouts": ["strided", "transposed", "unaligned"],
        "forms": [name for name, _ in subject.forms],
    }


def _describe_offsets(extent: Extent) -> str:
    if extent.offsets_max is None:
        return "every one of every size"
    return f"every one of 1 row; of other sizes the ends and {extent.offsets_max - 2} drawn with seed {_SEED}"


def _say(controls: dict[str, dict[str, int]]) -> str:
    stock, by_rows = controls["stock"], controls.get("by rows")
    if stock["caught"]:
        return f"torch's own kernel differed in {stock['caught']} of {stock['trials']} trials"
    found = "the control found nothing in torch's own kernel, and"
    if by_rows and by_rows["caught"]:
        return f"{found} one that counts its rows differed in {by_rows['caught']} of {by_rows['trials']} trials"
    return f"{found} a planted difference in {controls['planted']['caught']} trials"


def _environment(device: torch.device) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = None
    if device.type == "cuda":
        name, threads = torch.cuda.get_device_name(device), None
    else:
        name, threads = f"cpu {torch.backends.cpu.get_cpu_capability()}", torch.get_num_threads()
    return {"device": name, "arch": arch_of(device).name, "threads": threads, "versions": versions}


def main(arguments: list[str]) -> int:
    """Run `certify`; return 0 if all passed, 1 if a certificate failed, 2 for unsupported input, 3 if inconclusive."""
    parser = argparse.ArgumentParser(prog="python -m spanreplay_kernels certify", description=__doc__)
    parser.add_argument("--op", required=True, choices=sorted(SUBJECTS))
    written = "; ".join(f"{op} {kind.sizes}" for op, kind in SUBJECTS.items())
    parser.add_argument("--shapes", required=True, nargs="+", help=f"e.g. 4096x4096: {written}")
    parser.add_argument("--dtype", default="bf16", choices=sorted({*_DTYPES, *(str(d)[6:] for d in _DTYPES.values())}))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    extents = parser.add_mutually_exclusive_group()
    extents.add_argument("--quick", action="store_true", help="few sizes and places; the certificate says so")
    extents.add_argument("--every-offset", action="store_true", help="every place of every size: a million trials")
    parser.add_argument("--out", type=Path, help="a file for the certificates (default: standard output)")
    options = parser.parse_args(arguments)
    extent = QUICK if options.quick else EVERY_OFFSET if options.every_offset else FULL
    dtype = _DTYPES.get(options.dtype) or getattr(torch, options.dtype)
    try:
        certificates = [certify(options.op, shape, dtype, options.device, extent) for shape in options.shapes]
    except UnsupportedInput as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    text = json.dumps(certificates, indent=1, ensure_ascii=False) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)
    verdicts = {each["verdict"] for each in certificates}
    for each in certificates:
        sys.stderr.write(f"{each['op']} {each['shape']} {each['dtype']}: {each['verdict']}; {each['control']}\n")
    return 1 if Verdict.FAILED.value in verdicts else 3 if Verdict.INCONCLUSIVE.value in verdicts else 0
