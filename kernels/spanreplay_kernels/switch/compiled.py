"""`torch.compile` with our kernels: operations that the compiler would fuse or pass to a library stay ours.

A compiler works on the model's graph and bypasses the dispatcher, so overriding aten's operations doesn't affect
compiled code. Here every operation in the graph that has an override is replaced by its twin in `torch.ops.spanreplay`,
which is opaque to the compiler. A graph with any other reduction is refused before it runs.
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
"""Other libraries' operations with the arguments of aten's: transformers uses its own for dtypes other than bf16."""


def compile_model(model: Any, *, backend: str = "inductor", **options: Any) -> Any:
    """Return `torch.compile(model)` with our kernels instead of the compiler's; bitwise batch-invariant.

    backend: `inductor`, which fuses the operations between our kernels, or `aot_eager`, which doesn't. options: other
    options of `torch.compile`, e.g. `dynamic`. Forward only. Works without `invariant()`; within it, other compiled
    code also uses the `inductor` backend. Within `engines.transformers.enable`, the model's attention is ours.
    The bits can differ from the eager model's, since fused operations round differently.
    Raises: UnsupportedInput for another backend. On the first call, torch's BackendCompilerFailed, whose
        `inner_exception` is an UncoveredOp that names the uncovered operation.
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
    """Compile a graph, fusing the operations between our kernels; a backend of `torch.compile`. Raises: UncoveredOp."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    _keep_attention(graph)
    # Don't decompose operations that we replace: the parts would be the compiler's own sums and exponentials
    table = {op: rule for op, rule in select_decomp_table().items() if _name(op) not in TWINS}
    changes = {
        "joint_custom_pre_pass": _keep_ours,
        # Which operations are fused depends on shapes; the rounding must not
        "emulate_precision_casts": True,
    }
    return compile_fx(graph, inputs, config_patches=changes, decompositions=table)


BACKENDS: Final = MappingProxyType({"aot_eager": _by_eager, "inductor": compile_by_ours})


def _refuse_backward(*_args: Any) -> Any:
    raise UnsupportedInput("compile_model", "a gradient is required", hint="run under torch.inference_mode()")


def _keep_attention(graph: GraphModule) -> None:
    """Replace attention before the graph is decomposed; otherwise the compiler would choose its kernel."""
    stock = (torch.nn.functional.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in stock:
            node.target = TWINS[_ATTENTION]._opoverload
    graph.recompile()


def _keep_ours(graph: torch.fx.Graph) -> None:
    """Replace every operation of an aten graph that has a twin; refuse those that are uncovered."""
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
    """Return an `OpOverload`'s name as `OVERRIDES` spells it; "" for anything else."""
    if not isinstance(op, torch._ops.OpOverload):
        return ""
    if op.namespace != "aten":
        return _SAME_AS.get(op._schema.name, "")
    name = op._schema.name.split("::")[-1]
    return f"{name}.{op._overloadname}" if op._overloadname not in ("", "default") else name
