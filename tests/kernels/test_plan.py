"""Plans: values that don't depend on a batch, the same on every machine."""

from __future__ import annotations

import dataclasses

import pytest

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.arch import ARCHS, CPU, Arch, Mma
from spanreplay_kernels.plans.plan import AttentionPlan, MatmulPlan, RowPlan, hash_plans, plan, plan_matmul, plan_rows


@pytest.mark.parametrize("kind", [MatmulPlan, RowPlan, AttentionPlan])
def test_k9_plan_has_no_place_for_the_number_of_rows(kind: type) -> None:
    """No field of a plan could hold M, and none can be added later."""
    names = {field.name for field in dataclasses.fields(kind)}
    assert not names & {"m", "M", "rows", "tokens", "batch", "batch_size"}
    made = plan("matmul", n=8, k=8, dtype="float32")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.dtype = "bfloat16"  # type: ignore[misc]  # what must not work


@pytest.mark.parametrize("arch", [a for a in ARCHS.values() if a is not CPU], ids=lambda a: a.name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (4096, 4096), (1024, 4096), (151_936, 4096), (128, 100_000), (37, 1000)])
def test_k9_segments_cover_k_once(n: int, k: int, arch: Arch) -> None:
    """Segments are whole blocks, cover K, and are not empty."""
    made = plan_matmul(n, k, "bfloat16", arch)
    assert made.segment_k % made.block_k == 0
    assert (made.segments - 1) * made.segment_k < k <= made.segments * made.segment_k


def test_few_columns_are_split_and_many_are_not() -> None:
    """A narrow weight is split over K until a GPU is busy; a wide one is not."""
    assert plan_matmul(1024, 4096, "bfloat16", ARCHS["sm_90"]).segments == 8
    assert plan_matmul(151_936, 4096, "bfloat16", ARCHS["sm_90"]).segments == 1


def test_instruction_class_is_the_architectures() -> None:
    """bf16 uses the architecture's tensor core, fp32 never does."""
    for arch in ARCHS.values():
        assert plan_matmul(64, 64, "bfloat16", arch).mma is arch.tensor_core
    assert plan_matmul(64, 64, "float32", ARCHS["sm_90"]).mma is Mma.FMA


@pytest.mark.parametrize("arch", [a for a in ARCHS.values() if a is not CPU], ids=lambda a: a.name)
def test_k3_rows_are_read_once_where_registers_hold_them(arch: Arch) -> None:
    """Blocks are powers of two; a thread holds at most 32 elements of a tile; longer rows are read twice."""
    for op, held in (("rms_norm", 16_384), ("softmax", 32_768), ("log_softmax", 32_768)):
        for width in (1, 16, 17, 100, 2048, 2049, held, held + 1, 151_936):
            made = plan_rows(op, width, "bfloat16", arch)
            assert made.block & (made.block - 1) == 0
            assert made.block * made.block_rows <= made.warps * 32 * 32
            assert made.passes == (1 if width <= held else 2)


def test_hash_names_the_order_of_additions() -> None:
    """Equal plans have equal hashes, in any order; another block gives another hash."""
    a, b = plan("matmul", n=8, k=64, dtype="bfloat16"), plan("mean", width=64, dtype="float32")
    assert hash_plans(a, b) == hash_plans(b, a)
    assert hash_plans(a) != hash_plans(b)


def test_unknown_plans_are_refused() -> None:
    """An operation without a plan is refused by name."""
    with pytest.raises(UnsupportedInput, match="conv2d: no plan"):
        plan("conv2d", dtype="float32")
    with pytest.raises(UnsupportedInput, match="float64 has no plan"):
        plan("mean", dtype="float64", width=4)
    with pytest.raises(UnsupportedInput, match="head_dim 512 is above 256"):
        plan("attention", dtype="bfloat16", head_dim=512)
