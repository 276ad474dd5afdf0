"""Our operations for graphs: opaque to compilers, shaped like aten's, and used in compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- as everyone calls it

from kernels.samples import normal
from spanreplay_kernels.errors import UncoveredOp, UnsupportedInput
from spanreplay_kernels.switch.compiled import BACKENDS, compile_model
from spanreplay_kernels.switch.custom_ops import TWINS, attention, combine, masked_attention, permute, scaled_product
from spanreplay_kernels.switch.mode import invariant
from spanreplay_kernels.switch.registry import engaged, overridden

# Warnings of torch about torch while it imports its compiler
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
X8 = normal(32, 32, dtype=torch.float32)
X, W = normal(6, 24, dtype=torch.float32), normal(24, 8, dtype=torch.float32, seed=1)
SAMPLES: dict[str, tuple[Any, ...]] = {
    "mm": (X, W),
    "addmm": (normal(8, dtype=torch.float32), X, W),
    "bmm": (X[None], W[None]),
    "baddbmm": (normal(8, dtype=torch.float32), X[None], W[None]),
    "mv": (X, W[:, 0]),
    "dot": (X[0], X[1]),
    "_softmax": (X, -1, False),
    "_log_softmax": (X, -1, False),
    "mean.dim": (X, [-1], True),
    "sum.dim_IntList": (X, [0]),
    "sum": (X,),
    "native_layer_norm": (X, [24], None, X[0], 1e-5),
    "linalg_vector_norm": (X, 2, [-1]),
    "_fused_rms_norm": (X, [24], X[0], 1e-5),
    "scaled_dot_product_attention": (X.view(1, 2, 3, 24), X.view(1, 2, 3, 24), X.view(1, 2, 3, 24)),
    "_grouped_mm": (X, W[None].repeat(2, 1, 1), torch.tensor([2, 6], dtype=torch.int32)),
    "_scaled_mm": (
        X8.to(torch.float8_e4m3fn),
        X8.to(torch.float8_e4m3fn).t(),
        torch.rand(32, 1),
        torch.rand(1, 32),
        None,
        None,
        torch.bfloat16,
    ),
    "topk": (X, 3),
    "sort": (X,),
    "silu": (X,),
    "gelu": (X.t(),),
}


class Layers(nn.Module):
    """The parts of a model: products, norms, an activation, attention and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(2048, 128), nn.LayerNorm(128)
        self.last = nn.Linear(128, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(F.silu(self.first(x)))
        heads = h.view(-1, 2, 4, 16)
        h = torch.tanh(h / 30.0) * 30.0 + h.cos() * h.sin()
        h = h + F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).reshape(-1, 128)
        return torch.softmax(self.last(h) * 3.0, -1) + h.mean(-1, keepdim=True)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rows_differ(function: Callable[[Tensor], Tensor], x: Tensor) -> list[int]:
    """Numbers of rows at which a part of x has other bits than the whole."""
    whole = function(x)
    return [rows for rows in (2, 3, 7, 33) if not torch.equal(function(x[5 : 5 + rows]), whole[5 : 5 + rows])]


@pytest.mark.parametrize("name", SAMPLES)
def test_k10_twins_are_what_they_stand_for(name: str) -> None:
    """A twin has aten's schema, the shapes that a compiler expects, and the bits of the override."""
    base, _, overload = name.partition(".")
    stock = getattr(getattr(torch.ops.aten, base), overload or "default")
    with torch.inference_mode():
        twin = TWINS[name](*SAMPLES[name])
        with invariant():
            override = stock(*SAMPLES[name])
    for ours, theirs in zip(_all(twin), _all(override), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.is_contiguous()
    # torch's check of a schema multiplies operands, which its CPU cannot do in fp8
    checks = ("test_faketensor",) if name == "_scaled_mm" else ("test_schema", "test_faketensor")
    torch.library.opcheck(TWINS[name], SAMPLES[name], test_utils=checks)


def _all(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_every_functional_override_has_a_twin() -> None:
    """Every operation that is ours in eager code is also ours in a graph."""
    assert set(TWINS) == {name for name in overridden("CPU") if not name.endswith(("_", "out"))}


def test_k9_attention_operations_are_checked_by_torch() -> None:
    """Schema and shapes of the two operations that aten lacks are checked."""
    x, ends = X.view(6, 2, 12), torch.tensor([0, 2, 6], dtype=torch.int32)
    torch.library.opcheck(attention, (x, x, x, ends, ends), test_utils=("test_schema", "test_faketensor"))
    batch = X.view(1, 2, 3, 24)
    options = {"causal": True}
    torch.library.opcheck(
        masked_attention, (batch, batch, batch), options, test_utils=("test_schema", "test_faketensor")
    )


def test_k9_operations_of_fp8_and_of_slots_have_the_shapes_they_say() -> None:
    """For more operations that aten lacks, the shapes announced to a compiler match the results."""
    ids, weights = torch.tensor([[1, 0], [2, 1], [0, 2]]), torch.rand(3, 2)
    q, scale = X8.to(torch.float8_e4m3fn), torch.rand(32, 1)
    checks = ("test_faketensor",)
    torch.library.opcheck(permute, (ids, 4), test_utils=("test_schema", *checks))
    rows, inverse = normal(6, 8, dtype=torch.float32), permute(ids, 4)[2]
    torch.library.opcheck(combine, (rows, inverse, weights), test_utils=("test_schema", *checks))
    torch.library.opcheck(scaled_product, (q, q.t(), scale, scale.t(), None, torch.float16), test_utils=checks)
    assert [each.shape for each in permute(ids, 4)] == [(6,), (4,), (3, 2)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_k10_compiled_code_keeps_ours(backend: str) -> None:
    """Under torch.compile a row has the same bits in every batch, by our kernels, and eager results up to rounding."""
    model, x = Layers().eval(), normal(64, 2048, dtype=torch.float32)
    expected = model(x).detach()
    compiled = compile_model(model, backend=backend, dynamic=True)
    with torch.inference_mode(), invariant():
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
        ran = {"addmm", "silu", "native_layer_norm", "scaled_dot_product_attention", "mm", "_softmax", "mean.dim"}
        assert ran <= set(engaged())
        assert rows_differ(compiled, x) == []


def test_k10_stock_compiled_code_is_caught_by_the_same_check() -> None:
    """Negative control: torch.compile alone does not pass, and with the switch on it does."""
    model, x = Layers().eval(), normal(64, 2048, dtype=torch.float32)
    stock = torch.compile(model, backend="inductor", dynamic=True)
    with torch.inference_mode():
        assert rows_differ(stock, x)
        with invariant():
            assert rows_differ(stock, x) == []
            assert "addmm" in engaged()


@pytest.mark.parametrize("backend", BACKENDS)
def test_k10_a_graph_with_an_uncovered_operation_is_refused(backend: str) -> None:
    """Such a graph is refused by name, at compile time."""
    compiled = compile_model(lambda x: (x * 2).cumsum(-1), backend=backend)
    with torch.inference_mode(), pytest.raises(Exception, match=r"cumsum.* is not covered") as caught:
        compiled(X)
    # torch wraps an exception of a backend
    assert isinstance(getattr(caught.value, "inner_exception", None), UncoveredOp)


def test_k10_integers_stay_with_the_compiler() -> None:
    """Integer operations, such as counting positions, are left to the compiler."""
    compiled = compile_model(lambda mask: mask.cumsum(-1) - 1, backend="aot_eager")
    assert compiled(torch.ones(2, 3, dtype=torch.int64)).tolist() == [[0, 1, 2]] * 2


def test_k10_an_unknown_backend_is_refused() -> None:
    """A backend that was not shown to keep our operations is refused."""
    with pytest.raises(UnsupportedInput, match="'cudagraphs' is unknown"):
        compile_model(nn.Identity(), backend="cudagraphs")
