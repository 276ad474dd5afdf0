"""`python -m spanreplay_kernels audit MODEL`: list a model's operations and show which are not batch-invariant.

The model is loaded with transformers and reads a few tokens; nothing is served and nothing is generated.
"""

from __future__ import annotations

import argparse
import sys

from transformers import AutoModelForCausalLM

from spanreplay_kernels.engines.transformers import check, enable
from spanreplay_kernels.errors import KernelError
from spanreplay_kernels.switch.audit import Kind

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Return 0 if every operation is covered, 1 if one isn't or is refused, 2 if the model can't be loaded."""
    parser = argparse.ArgumentParser(
        prog="python -m spanreplay_kernels audit", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("model", help="name on the hub, or a local directory")
    parser.add_argument("--revision", help="commit of the hub")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, … (default: cpu)")
    parser.add_argument("--dtype", default="auto", help="auto (the weights' own), bfloat16, float16, float32")
    options = parser.parse_args(arguments)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            options.model, revision=options.revision, dtype=options.dtype, device_map=options.device
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{options.model} cannot be loaded: {error}\n")
        return 2
    try:
        with enable(model.eval(), probe=False):
            report = check(model, fail=False)
    except KernelError as error:
        sys.stderr.write(f"{options.model}: {error}\n")
        return 1
    uncovered, covered = report.of(Kind.UNCOVERED), report.of(Kind.COVERED)
    sys.stdout.write(f"{report}\n")
    sys.stderr.write(f"{sum(covered.values())} calls covered, {sum(uncovered.values())} uncovered\n")
    if uncovered:
        sys.stderr.write(f"not batch-invariant: {', '.join(sorted(uncovered))}\n")
    return 1 if uncovered else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
