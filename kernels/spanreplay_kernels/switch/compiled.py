"""`torch.compile` with our kernels kept: what a compiler would fuse, or hand to its own library, stays ours.

A compiler takes a model's operations from its graph and never asks the dispatcher, so that overriding aten's operations
does not reach compiled code. Here every operation of the graph that has an override becomes its twin among
`torch.ops.spanreplay`, which no compiler can look into, and a graph that adds up anything else is refused before it
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map_only

from spanreplay_kernels.errors import UncoveredOp, UnsupportedInput
from spanreplay_kernels.switch.audit import Kind, classify
from spanreplay_kernels.switch.custom_ops import TWINS

__all__ = ["BACKENDS", "compile_model"]

_ATTENTION: Final = "scaled_dot_product_attention"
_HINT: Final = "compile a model without it"
_SAME_AS: Final = MappingProxyType({"transformers::grouped_mm_fallback": "_grouped_mm"})
"""Operations of others that take the arguments of aten's: transformers' own, in graphs of other dtypes than bf16."""


def compile_model(model: Any, *, backend: str = "inductor", **options: Any) -> Any:
    """`torch.compile(model)`, with our kernels in place of whatever the compiler would use; bitwise batch-invariant.

    backend: `inductor`, which fuses what is between our kernels, or `aot_eager`, which does not. options: those of
    `torch.compile` that are not about the backend, e.g. `dynamic`. Forward only. Needs no `invariant()`, within which
    what others have compiled is compiled by the first too; within `engines.transformers.enable` a model's attention is
    ours.
    The bits are this compiled model's own: a fused operation rounds where an eager one does not.
    Raises: UnsupportedInput for another backend; on the first call torch's BackendCompilerFailed, whose
        `inner_exception` is an UncoveredOp that names what is not covered.
    """
    if backend not in BACKENDS:
        raise UnsupportedInput("compile_model", f"backend {backend!r} is unknown", hint=f"use one of {(*BACKENDS,)}")
    return torch.compile(model, backend=BACKENDS[backend], **options)


def _by_eager(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    def finish(lowered: GraphModule, _inputs: Any) -> Any:
        _keep_ours(lowered.graph)
        lowered.recompile()
        return make_boxed_func(lowered.forward)

    _keep_attention(graph)
    return aot_module_simplified(graph, inputs, fw_compiler=finish, bw_compiler=_refuse_backward, decompositions={})


def compile_by_ours(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The backend of `torch.compile` that fuses what is between our kernels. Raises: UncoveredOp."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    _keep_attention(graph)
    # What it would take apart into sums and exponentials of its own comes whole to us
    table = {op: rule for op, rule in select_decomp_table().items() if _name(op) not in TWINS}
    changes = {
        "joint_custom_pre_pass": _keep_ours,
        # Which operations are fused depends on shapes; where a fused one rounds must not
        "emulate_precision_casts": True,
    }
    return compile_fx(graph, inputs, config_patches=changes, decompositions=table)


BACKENDS: Final = MappingProxyType({"aot_eager": _by_eager, "inductor": compile_by_ours})


def _refuse_backward(*_args: Any) -> Any:
    raise UnsupportedInput("compile_model", "a gradient is required", hint="run under torch.inference_mode()")


def _keep_attention(graph: GraphModule) -> None:
    """Before anything is taken apart: attention would become the compiler's choice of a kernel."""
    stock = (torch.nn.functional.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in stock:
            node.target = TWINS[_ATTENTION]._opoverload
    graph.recompile()


def _keep_ours(graph: torch.fx.Graph) -> None:
    """Put a twin in place of every operation that has one, in a graph of aten's operations; refuse what is left."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = _name(node.target)
        args, kwargs = tree_map_only(Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
        kind = classify(node.target, args, kwargs)
        if kind is Kind.EXACT:
            continue
        if name in TWINS:
            node.target = TWINS[name]._opoverload
        elif kind is Kind.UNCOVERED:
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            raise UncoveredOp(str(node.target), *tensors, hint=_HINT)


def _name(op: Any) -> str:
    """As `OVERRIDES` spells it, of an `OpOverload`; anything else has none."""
    if not isinstance(op, torch._ops.OpOverload):
        return ""
    if op.namespace != "aten":
        return _SAME_AS.get(op._schema.name, "")
    name = op._schema.name.split("::")[-1]
    return f"{name}.{op._overloadname}" if op._overloadname not in ("", "default") else name
