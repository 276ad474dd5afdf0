"""The switch: inside it a model's own calls give a row the same bits in every batch; afterwards all is as before."""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- as everyone calls it

from kernels.samples import DTYPES, name_of, normal
from spanreplay_kernels.errors import UncoveredOp, UnsupportedInput
from spanreplay_kernels.ops.scaled import quantize, quantize_weight, scaled_mm
from spanreplay_kernels.switch.audit import Kind, audit
from spanreplay_kernels.switch.mode import invariant
from spanreplay_kernels.switch.overrides import IN_BLOCKS, OVERRIDES, REFUSED
from spanreplay_kernels.switch.registry import engaged, is_invariant, overridden

SIZES = (1, 3, 8, 15, 17, 33, 64, 100, 257, 1001, 4096, 4099, 8191, 8193, 32_704, 34_001)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch if hasattr(torch, name) else F, name) for name in IN_BLOCKS},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "selu": F.selu,
    "silu_in_place": lambda x: F.silu(x.clone(), inplace=True),
}


def state_of_aten() -> dict[str, str]:
    """The dispatcher's registrations for every overload that we override, with their places."""
    return {name: torch._C._dispatch_dump(f"aten::{name}") for name in overridden("CPU")}


def rows_differ(function: Callable[[Tensor], Tensor], x: Tensor) -> list[int]:
    """Numbers of rows at which a part of x has other bits than the whole."""
    whole = function(x)
    return [rows for rows in (1, 2, 3, 7, 16, 33) if not torch.equal(function(x[5 : 5 + rows]), whole[5 : 5 + rows])]


def products() -> dict[str, Callable[[Tensor], Tensor]]:
    """Every way to write a product of rows x (·, 2048) and weights."""
    w, bias = normal(96, 2048, dtype=torch.float32, seed=1), normal(96, dtype=torch.float32, seed=2)
    return {
        "linear": lambda x: F.linear(x, w),
        "linear with bias": lambda x: F.linear(x, w, bias),
        "linear of sequences": lambda x: F.linear(x[None], w, bias)[0],
        "@": lambda x: x @ w.t(),
        "einsum": lambda x: torch.einsum("ik,jk->ij", x, w),
        "mv": lambda x: x @ w[0],
        "addmm": lambda x: torch.addmm(bias, x, w.t(), beta=0.5, alpha=2.0),
        "mm into": lambda x: torch.mm(x, w.t(), out=x.new_empty(x.shape[0], 96)),
        "bmm": lambda x: torch.bmm(x[None], w.t()[None])[0],
        "baddbmm": lambda x: torch.baddbmm(bias, x[None], w.t()[None])[0],
        "addmv": lambda x: torch.addmv(torch.ones(1), x, w[0]),
    }


@pytest.mark.parametrize("name", products())
def test_k10_products_have_their_bits_in_every_batch(name: str) -> None:
    """However a product is written, its rows don't depend on each other, and it is correct."""
    x, function = normal(64, 2048, dtype=torch.float32), products()[name]
    stock = function(x)
    with torch.inference_mode(), invariant():
        assert rows_differ(function, x) == []
        assert sum(engaged().values()) > 0
        torch.testing.assert_close(function(x), stock, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", [None, 128], ids=["rows", "blocks"])
def test_k10_products_of_fp8_have_their_bits_in_every_batch(group: int | None) -> None:
    """As called by quantised layers, with a scale per token; one scale for all tokens is refused by name."""
    x = normal(64, 2048, dtype=torch.bfloat16)
    w, w_scale = quantize_weight(normal(2048, 96, dtype=torch.bfloat16, seed=1), group)

    def product(rows: Tensor) -> Tensor:
        q, scale = quantize(rows, group)
        return torch._scaled_mm(q, w, scale, w_scale, out_dtype=torch.bfloat16)

    with torch.inference_mode(), invariant(), audit() as report:
        assert rows_differ(product, x) == []
        assert torch.equal(product(x), scaled_mm(quantize(x, group)[0], w, quantize(x, group)[1], w_scale))
        assert set(report.of(Kind.COVERED)) == {"_scaled_mm"}
        q, one = x.to(torch.float8_e4m3fn), torch.ones(())
        with pytest.raises(UnsupportedInput, match=r"one scale for its whole batch.*one a row"):
            torch._scaled_mm(q, w, one, w_scale if group is None else one, out_dtype=torch.bfloat16)
        with pytest.raises(UnsupportedInput, match="a result in fp8 has no kernel"):
            torch._scaled_mm(q, w, quantize(x)[1], torch.ones(1, 96), scale_result=one, out_dtype=q.dtype)


def test_k10_stock_products_are_caught_by_the_same_check() -> None:
    """Negative control: without the switch the same calls do not pass."""
    x = normal(64, 2048, dtype=torch.float32)
    assert any(rows_differ(function, x) for function in products().values())


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax in fp32": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean of two": lambda x: x.view(-1, 7, 23).mean((1, 2)),
    "sum": lambda x: x.sum(-1),
    "sum over the middle": lambda x: x.view(-1, 7, 23).sum(1),
    "sum into": lambda x: torch.sum(x, -1, out=x.new_empty(0)),
    "rms_norm": lambda x: F.rms_norm(x, (161,), torch.ones(161, dtype=x.dtype), 1e-6),
    "layer_norm": lambda x: F.layer_norm(x, (161,), torch.ones(161, dtype=x.dtype), torch.ones(161, dtype=x.dtype)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 1, 7, 23)] * 3, is_causal=True),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_k10_reductions_of_rows_are_ours(name: str) -> None:
    """Under aten's names they have the same bits in every batch, and aten's values up to rounding."""
    function = REDUCTIONS[name]
    for dtype in DTYPES:
        x = normal(64, 161, dtype=dtype)
        stock = function(x)
        with torch.inference_mode(), invariant():
            assert rows_differ(function, x) == []
            assert sum(engaged().values()) > 0
            torch.testing.assert_close(function(x), stock, rtol=0.0, atol=128 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k11_activations_are_each_elements_own(dtype: torch.dtype, threads: int) -> None:
    """An element has the same value at any place in tensors of any size, with any number of threads."""
    torch.set_num_threads(threads)
    x = normal(35_000, dtype=dtype) * 3
    with torch.inference_mode(), invariant():
        for name, function in ACTIVATIONS.items():
            whole = function(x)
            for at, size in enumerate(SIZES):
                part = slice(at, at + size)
                assert torch.equal(function(x[part]).nan_to_num(7.0), whole[part].nan_to_num(7.0)), (name, size)
            assert function(x[:6].view(2, 3).t()).shape == (3, 2)


def test_k11_stock_activations_are_caught_by_the_same_check() -> None:
    """Negative control: torch computes the last elements of a tensor differently from the same ones in its middle."""
    x = normal(35_000, dtype=torch.float32) * 3
    changed = [f for f in ACTIVATIONS.values() if any(not torch.equal(f(x[:n]), f(x)[:n]) for n in SIZES)]
    assert changed


def test_k10_activations_are_what_they_are_called() -> None:
    """Ours compute the same function as torch's."""
    x = normal(3, 67, dtype=torch.float32)
    stock = {name: function(x) for name, function in ACTIVATIONS.items()}
    with torch.inference_mode(), invariant():
        for name, function in ACTIVATIONS.items():
            torch.testing.assert_close(function(x), stock[name], rtol=2e-6, atol=1e-6, equal_nan=True)


def test_k10_nests_and_restores_originals_by_identity() -> None:
    """Only the last exit restores aten's kernels, and then the dispatcher is as before."""
    before = state_of_aten()
    with invariant():
        with invariant():
            assert is_invariant()
        assert is_invariant()
        assert all(state != before[name] for name, state in state_of_aten().items())
    assert not is_invariant()
    assert state_of_aten() == before


def test_k10_an_exception_restores_too() -> None:
    """The user's own exception passes unchanged, and nothing stays overridden."""
    before, error = state_of_aten(), RuntimeError("the user's own")
    with pytest.raises(RuntimeError, match="the user's own") as caught, invariant(), invariant():
        raise error
    assert caught.value is error
    assert state_of_aten() == before


def test_k10_other_threads_compute_with_ours_until_the_last_leaves() -> None:
    """One thread's exit leaves another's switch on; a thread that never entered computes with ours as well."""
    entered, leave = threading.Event(), threading.Event()
    before, bits = state_of_aten(), dict[str, Tensor]()
    x, w = normal(3, 64, dtype=torch.float32), normal(64, 8, dtype=torch.float32)

    def stay() -> None:
        with invariant():
            entered.set()
            leave.wait(30)

    staying = threading.Thread(target=stay)
    with invariant():
        staying.start()
        assert entered.wait(30)
    assert is_invariant()
    bystander = threading.Thread(target=lambda: bits.update(mm=torch.mm(x, w)))
    bystander.start()
    bystander.join()
    assert engaged()["mm"] == 1
    leave.set()
    staying.join()
    assert state_of_aten() == before
    torch.testing.assert_close(bits["mm"], x @ w)


def test_k10_reduced_precision_is_off_and_comes_back() -> None:
    """TF32 and half-precision sums are off inside, and as the user had set them afterwards."""
    matmul = torch.backends.cuda.matmul
    stock = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with invariant():
            assert matmul.fp32_precision == "ieee"
            assert not matmul.allow_bf16_reduced_precision_reduction
        assert matmul.fp32_precision == "tf32"
        assert matmul.allow_bf16_reduced_precision_reduction
    finally:
        matmul.fp32_precision = stock


def test_k10_the_dispatchers_warning_stays_away() -> None:
    """The dispatcher does not warn about overridden kernels that the user asked for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with invariant():
            pass
    assert caught == []


def test_k10_a_gradient_is_refused_by_name() -> None:
    """Only forward passes are supported, since the order of a gradient's sums is not fixed."""
    layer = torch.nn.Linear(8, 4)
    with invariant():
        with pytest.raises(UnsupportedInput, match=r"addmm: a gradient is required.*inference_mode"):
            layer(torch.ones(2, 8))
        with torch.no_grad():
            assert layer(torch.ones(2, 8)).shape == (2, 4)


def test_k10_counts_begin_anew() -> None:
    """Operations that ran before the switch was turned on don't count."""
    x = normal(3, 64, dtype=torch.float32)
    for _ in range(2):
        with invariant():
            torch.mm(x, x.t())
            torch.mm(x, x.t())
            assert engaged() == {"mm": 2}


def test_k9_ties_keep_their_order() -> None:
    """The first of equal values is the first of the largest, whichever algorithm the size would select."""
    x = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 3.0]).repeat(3, 50)
    with invariant():
        values, indices = torch.topk(x, 4)
        assert indices.tolist() == [[1, 3, 5, 7]] * 3
        assert torch.equal(values, x.gather(1, indices))
        assert torch.topk(x[:1], 3, largest=False).indices.tolist() == [[0, 6, 12]]
        assert torch.sort(x[0], descending=True).indices[:3].tolist() == [1, 3, 5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, math.inf])
def test_k10_norms_of_rows_do_not_depend_on_the_batch(dtype: torch.dtype, order: float) -> None:
    """For every spelling in torch, a row's norm depends on that row alone, and equals fp64 within a rounding."""
    x = normal(97, 1003, dtype=dtype)
    spelt: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda each: torch.linalg.vector_norm(each, order, -1),
        lambda each: torch.norm(each, order, -1, keepdim=True),
        lambda each: each.norm(order, 1),
        lambda each: F.normalize(each, order, -1),
    )
    with torch.inference_mode(), invariant():
        for function in spelt:
            whole = function(x)
            for first, end in ((0, 1), (5, 21), (3, 4), (40, 97)):
                part = function(x[first:end])
                assert torch.equal(part.reshape(-1), whole[first:end].reshape(-1)), (first, end)
        found = torch.linalg.vector_norm(x, order, -1)
    expected = torch.linalg.vector_norm(x.double(), order, -1)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=0.0)


def test_k10_norms_without_a_kernel_are_refused() -> None:
    """Norms of another power, and in fp64, are refused by name."""
    x = normal(4, 8, dtype=torch.float32)
    with invariant():
        for refused, order in ((x, 3.0), (x.double(), 2.0)):
            with pytest.raises(UnsupportedInput, match="linalg_vector_norm"):
                torch.linalg.vector_norm(refused, order, -1)


@pytest.mark.parametrize("name", REFUSED)
def test_k10_what_has_no_kernel_is_refused_without_an_audit(name: str) -> None:
    """Products into another dtype, newer fp8 products, older spellings of norms: none varies silently."""
    base, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, base), overload or "default")
    x = normal(4, 4, dtype=torch.bfloat16)
    given = {
        "Tensor": x, "Tensor[]": [x], "Optional[Tensor]": None, "ScalarType": torch.float32, "number": 2,
        "List[int]": [0], "List[Tensor]": [x], "bool": False, "int": 2, "Optional[number]": 2, "Optional[int]": None,
    }  # fmt: skip
    needed = [each for each in operation._schema.arguments if not each.has_default_value()]
    values = {each.name: given[str(each.type)] for each in needed}
    before = torch._C._dispatch_dump(f"aten::{name}")
    with invariant(), pytest.raises(UncoveredOp, match=rf"{re.escape(name)} is not covered"):
        operation(**values)
    assert torch._C._dispatch_dump(f"aten::{name}") == before


def test_integers_and_empty_tensors_stay_with_aten() -> None:
    """Where no order matters, torch's own results are returned."""
    with invariant():
        ones = torch.ones(3, 4, dtype=torch.int64)
        assert torch.equal(ones @ ones.t(), torch.full((3, 3), 4))
        assert torch.equal(torch.ones(2, 0) @ torch.ones(0, 3), torch.zeros(2, 3))
        assert torch.empty(0, 4).mm(torch.ones(4, 3)).shape == (0, 3)
        assert torch.equal(
            torch.bmm(torch.full((1, 2, 1), 3.0), torch.full((1, 1, 4), 2.0)), torch.full((1, 2, 4), 6.0)
        )


def test_k10_the_dispatcher_takes_overrides_for_cuda() -> None:
    """Each overload can be registered on the CUDA key and removed again; only a GPU can show that it runs."""
    before = {name: torch._C._dispatch_dump(f"aten::{name}") for name in OVERRIDES}
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in overridden("CUDA").items():
            library.impl(name, function, "CUDA")
    assert all("CUDA" in torch._C._dispatch_dump(f"aten::{name}") for name in OVERRIDES)
    library._destroy()
    assert {name: torch._C._dispatch_dump(f"aten::{name}") for name in OVERRIDES} == before


def test_every_override_is_an_overload_of_aten() -> None:
    """A misspelt name would override nothing."""
    known = set(torch._C._dispatch_get_all_op_names())
    assert {f"aten::{name}" for name in (*overridden("CPU"), *OVERRIDES)} <= known


def test_public_names_are_these() -> None:
    """Names that users import from the package itself."""
    import spanreplay_kernels

    assert spanreplay_kernels.__all__ == ["compile_model", "engaged", "invariant", "is_invariant"]
    assert all(callable(getattr(spanreplay_kernels, name)) for name in spanreplay_kernels.__all__)
    assert spanreplay_kernels.invariant is invariant
    with pytest.raises(AttributeError, match="no attribute 'variant'"):
        spanreplay_kernels.variant  # noqa: B018 -- to look is to ask
