"""The audit names every operation that adds numbers and is not ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- as everyone calls it

from kernels.samples import DTYPES, normal
from spanreplay_kernels.errors import UncoveredOp
from spanreplay_kernels.ops.mean import sum_triton
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.plan import plan_rows
from spanreplay_kernels.switch.audit import STEADY, Kind, audit
from spanreplay_kernels.switch.mode import invariant

UNCOVERED: dict[str, Callable[[Tensor], object]] = {
    "var.correction": lambda x: x.var(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "convolution": lambda x: F.conv1d(x[None], x[:, None, :3], groups=x.shape[0]),
    "index_add_": lambda x: x.clone().index_add_(0, torch.tensor([0, 0]), x[:2]),
    "index_put_": lambda x: x.clone().index_put_((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "scatter.reduce": lambda x: x.scatter(1, torch.zeros(4, 8, dtype=torch.int64), x, reduce="add"),
    "scatter_reduce.two": lambda x: x.scatter_reduce(1, torch.zeros(4, 8, dtype=torch.int64), x, "sum"),
    "scatter_add": lambda x: x.scatter_add(1, torch.zeros(4, 8, dtype=torch.int64), x),
    "prod.dim_int": lambda x: x.prod(-1),
    "_cdist_forward": lambda x: torch.cdist(x, x),
    "_embedding_bag_forward_only": lambda x: F.embedding_bag(torch.zeros(1, 2, dtype=torch.int64), x),
    "native_group_norm": lambda x: F.group_norm(x[None], 2),
    "multinomial": lambda x: torch.multinomial(x.abs(), 1),
    "atan2": lambda x: torch.atan2(x, x + 1),
    "pow.Tensor_Scalar": lambda x: x.abs() ** 1.7,
    "pow.Scalar": lambda x: 10_000.0**x,
    "_fft_r2c": lambda x: torch.fft.rfft(x),
}


@pytest.mark.parametrize("name", UNCOVERED)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_k10_an_uncovered_operation_fails_by_name(name: str, mode: Callable[[], torch.no_grad]) -> None:
    """The message names the operation, its shapes and what to do; nothing is computed."""
    x = normal(4, 8, dtype=torch.float32)
    wanted = pytest.raises(UncoveredOp, match=r"is not covered .*float32\[.*; use a model")
    with wanted as caught, mode(), invariant(), audit():
        UNCOVERED[name](x)
    assert caught.value.op == name


def _attend_by_hand(x: Tensor, cast: Callable[[Tensor], Tensor] = lambda weights: weights) -> Tensor:
    q = x.view(2, 2, 1, 8).expand(2, 2, 4, 8)
    weights = F.softmax(q @ q.transpose(-1, -2) * 0.3, dim=-1, dtype=torch.float32)
    return F.dropout(cast(weights), 0.0, training=False) @ q


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize(
    "cast", [lambda w: w, lambda w: w.to(torch.bfloat16).float(), lambda w: (w * 0.5).contiguous()],
    ids=["plain", "cast", "scaled"],
)  # fmt: skip
def test_k10_attention_by_hand_is_uncovered(
    cast: Callable[[Tensor], Tensor], mode: Callable[[], torch.no_grad]
) -> None:
    """The sums of attention run over the padded length, which a neighbour decides, though each operation is ours."""
    x = normal(4, 8, dtype=torch.float32)
    with (
        pytest.raises(UncoveredOp, match=r'bmm is not covered .*attn_implementation="sdpa"'),
        mode(),
        invariant(),
        audit(),
    ):
        _attend_by_hand(x, cast)
    with mode(), invariant(), audit() as report:
        F.scaled_dot_product_attention(*[x.view(1, 2, 2, 8)] * 3)
        x.view(2, 2, 8).bmm(x.view(2, 8, 2))
    assert report.of(Kind.UNCOVERED) == {}


def test_k10_covered_operations_pass_and_are_counted() -> None:
    """Operations that ours replace are listed as covered, with shapes; movement and elementwise ones are separate."""
    x, w = normal(4, 8, dtype=torch.float32), normal(6, 8, dtype=torch.float32)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), invariant(), audit() as report:
            F.silu(F.linear(x[None], w) * 2).reshape(-1).sort(stable=True)
            torch.mm(x, w.t())
        assert report.of(Kind.COVERED) == {"mm": 2, "silu": 1}
        assert report.of(Kind.ELEMENTWISE) == {"mul.Tensor": 1}
        assert report.of(Kind.UNCOVERED) == {}
        assert "covered        2× mm (float32[4, 8] cpu, float32[8, 6] cpu)" in str(report)


def test_k10_without_the_switch_every_reduction_is_uncovered() -> None:
    """Negative control: the same product fails outside the switch, and the hint says so."""
    x = normal(4, 8, dtype=torch.float32)
    with pytest.raises(UncoveredOp, match=r"mm is not covered.*enter invariant\(\) first"), audit():
        x @ x.t()


def test_k10_a_report_without_failing_lists_all() -> None:
    """With fail=False the model goes on, and the report lists the uncovered operations."""
    x = normal(4, 8, dtype=torch.float32)
    with torch.inference_mode(), invariant(), audit(fail=False) as report:
        result = x.cumsum(-1) @ x.t()
    assert result.shape == (4, 4)
    assert (report.of(Kind.UNCOVERED), report.of(Kind.COVERED)) == ({"cumsum": 1}, {"mm": 1})
    assert str(report).startswith("uncovered")


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's own types
    """Another party's kernel, which a layer starts without torch."""
    row = tl.program_id(0)
    tl.store(out_ptr + row, tl.sum(tl.load(x_ptr + row * N + tl.arange(0, N)), 0))


def test_k10_a_kernel_that_a_layer_starts_by_itself_is_uncovered(device: str) -> None:
    """torch's dispatcher never sees it, so it is named and not started; ours pass, and so does any kernel outside."""
    x, out = normal(4, 8, dtype=torch.float32, device=device), torch.zeros(4, device=device)
    wanted = pytest.raises(UncoveredOp, match=r"row_sum_kernel is not covered .*float32\[4, 8\].*unquantised")
    with wanted, torch.no_grad(), invariant(), audit():
        row_sum_kernel[(4,)](x, out, 8)
    assert not out.any()
    with torch.no_grad(), invariant(), audit(fail=False) as report:
        row_sum_kernel[(4,)](x, out, 8)
        sum_triton(x, plan_rows("sum", 8, "float32", ARCHS["sm_90"]), torch.float32)
    assert report.of(Kind.UNCOVERED) == {"triton::row_sum_kernel": 1}
    torch.testing.assert_close(out, x.sum(-1))
    row_sum_kernel[(4,)](x, out, 8)
    assert report.of(Kind.UNCOVERED) == {"triton::row_sum_kernel": 1}


def test_k10_integers_are_exact() -> None:
    """Sums of integers have the same result in every order."""
    ids = torch.arange(12).view(3, 4)
    with invariant(), audit() as report:
        ids.cumsum(-1), ids.sum(-1), ids.float().argmax(-1), ids.float().amax(-1)
    assert report.of(Kind.UNCOVERED) == {}
    with pytest.raises(UncoveredOp), invariant(), audit():
        ids.cumsum(-1, dtype=torch.float32)


def test_k10_what_only_moves_is_movement() -> None:
    """Replacing values involves no order of additions, however it is written."""
    x, rows = normal(4, 8, dtype=torch.float32), torch.tensor([0, 2])
    with torch.inference_mode(), invariant(), audit() as report:
        y = x.clone()
        y[rows] = x[rows] * 2
        y.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 0.0)
        y.masked_fill_(y > 3, 0.0)
        torch.cat([y, x]).index_select(0, rows).repeat(2, 1).tril()
    assert set(report.of(Kind.MOVEMENT)) >= {"clone", "index_put_", "scatter_.value", "cat", "index_select", "tril"}
    assert report.of(Kind.UNCOVERED) == {}


def test_k10_operations_of_others_are_uncovered() -> None:
    """It is unknown whether a custom operation adds numbers."""
    operation = torch.library.custom_op(
        "audit_test::unknown", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    with pytest.raises(UncoveredOp, match="unknown"), invariant(), audit():
        operation(torch.ones(3))


@pytest.mark.parametrize("threads", [1, 2])
def test_k11_steady_operations_are_each_elements_own(threads: int) -> None:
    """Operations listed as elementwise on the CPU give an element the same value at any place in any tensor."""
    torch.set_num_threads(threads)
    unary = [name for name in sorted(STEADY - {"where"}) if _takes_one(name)]
    assert len(unary) > 30
    for dtype in DTYPES:
        x = normal(35_000, dtype=dtype).abs() + 0.01
        for name in unary:
            function = getattr(torch, name, getattr(F, name, None)) or getattr(torch.ops.aten, name)
            whole = _first(function(x))
            for at, size in enumerate((1, 3, 8, 15, 33, 100, 257, 4099, 34_001)):
                assert torch.equal(_first(function(x[at : at + size])), whole[at : at + size]), (name, dtype, size)


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return (result if isinstance(result, Tensor) else result[0]).nan_to_num(7.0)


def _takes_one(name: str) -> bool:
    """Whether an operation takes a single float tensor."""
    function = getattr(torch, name, getattr(F, name, None)) or getattr(torch.ops.aten, name)
    try:
        function(torch.ones(2))
    except (TypeError, RuntimeError):
        return False
    return True
