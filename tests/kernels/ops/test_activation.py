"""silu(gate) · up: an element's bits depend only on its own values, wherever its tensor ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.rows import BATCH, assert_neighbours_change_nothing, assert_rows_keep_their_bits, batch
from kernels.samples import DTYPES, EDGES, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.activation import silu_mul, silu_mul_ref, silu_mul_triton


def by_kernel(x: Tensor) -> Tensor:
    return silu_mul_triton(x, x.flip(-1))


def by_cpu(x: Tensor) -> Tensor:
    return silu_mul(x, x.flip(-1))


@pytest.mark.parametrize("width", [width for width in BATCH if width < 257])
def test_k9_gate_kernel_gives_a_row_its_bits_in_every_batch(width: int, device: str) -> None:
    """All numbers of rows around vector sizes are tried, each at another place of the batch."""
    assert_rows_keep_their_bits(by_kernel, batch(width, torch.float32, device)[:34])


@pytest.mark.parametrize("width", tuple(BATCH))
def test_k11_cpu_gate_gives_a_row_its_bits_in_every_batch(width: int) -> None:
    """All numbers of rows from 1 to 130 are tried, and odd widths, because torch's own silu has a special tail."""
    x = normal(140, width, dtype=torch.float32)
    assert_rows_keep_their_bits(by_cpu, x, range(1, 131) if width < 4097 else EDGES)


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_k11_cpu_gate_does_not_depend_on_threads(threads: int) -> None:
    """Any number of threads gives the bits of two."""
    x = normal(33, 4097, dtype=torch.float32)
    expected = by_cpu(x)
    torch.set_num_threads(threads)
    assert torch.equal(by_cpu(x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_hostile_neighbours_do_not_reach_a_gate(dtype: torch.dtype, device: str) -> None:
    """Hostile neighbours change nothing, either in the kernel or on the CPU."""
    x = normal(20, 100, dtype=dtype)
    assert_neighbours_change_nothing(by_cpu, x)
    assert_neighbours_change_nothing(by_kernel, x.to(device))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_gate_follows_its_definition(dtype: torch.dtype, device: str) -> None:
    """Kernel and CPU are within the last place of the definition, which matches torch's silu; infinities too."""
    gate, up = normal(3, 1500, dtype=dtype) * 4, normal(3, 1500, dtype=dtype, seed=1)
    gate[0, :5] = torch.tensor([-100.0, 100.0, float("inf"), float("-inf"), float("nan")])
    # A GPU computes exp as a power of two of a product, whose error grows with the gate
    expected, rtol = silu_mul_ref(gate, up), max(2 * torch.finfo(dtype).eps, 4e-6)
    torch.testing.assert_close(silu_mul(gate, up), expected, rtol=rtol, atol=0, equal_nan=True)
    kernel = silu_mul_triton(gate.to(device), up.to(device)).cpu()
    torch.testing.assert_close(kernel, expected, rtol=rtol, atol=0, equal_nan=True)
    torchs = (torch.nn.functional.silu(gate.double()) * up.double()).to(dtype)
    torch.testing.assert_close(expected, torchs, rtol=rtol, atol=1e-37, equal_nan=True)


def test_k9_silu_with_another_tail_is_caught() -> None:
    """Negative control: a function that computes the last elements of a tensor differently does not pass."""

    def variant(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        body = flat.numel() // 16 * 16
        tail = flat[body:].double()
        return torch.cat((silu_mul_ref(flat[:body], flat[:body]), (tail * tail.sigmoid() * tail).float())).view(x.shape)

    with pytest.raises(AssertionError):
        assert_rows_keep_their_bits(variant, normal(140, 101, dtype=torch.float32), range(1, 131))


def test_k9_halves_of_one_product_are_not_copied(device: str) -> None:
    """gate and up as two halves of a wider tensor, and transposed, give the bits of their copies."""
    both = normal(9, 200, dtype=torch.float32)
    gate, up = both.chunk(2, -1)
    expected, kernel = silu_mul(gate.clone(), up.clone()), silu_mul_triton(gate.clone().to(device), up.to(device))
    assert torch.equal(silu_mul(gate, up), expected)
    assert torch.equal(silu_mul_triton(*both.to(device).chunk(2, -1)), kernel)
    assert torch.equal(silu_mul(gate.t().contiguous().t(), up), expected)
    assert torch.equal(silu_mul(gate.view(3, 3, 100), up.view(3, 3, 100)), expected.view(3, 3, 100))
    assert silu_mul(gate[:0], up[:0]).shape == (0, 100)


def test_wrong_operands_of_a_gate_are_refused() -> None:
    """The message names the operation, the shapes and what to pass."""
    x = torch.ones(2, 8)
    with pytest.raises(
        UnsupportedInput, match=r"silu_mul: the shapes differ \(float32\[2, 8\] cpu, float32\[2, 4\] cpu"
    ):
        silu_mul(x, x[:, :4])
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        silu_mul(x, x.half())
    with pytest.raises(UnsupportedInput, match=r"int64.*use bfloat16"):
        silu_mul(x.long(), x.long())
