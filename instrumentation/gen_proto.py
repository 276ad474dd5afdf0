"""Generates spanreplay/v1 from replay.proto; `--check` fails if the committed code is stale.

Needs grpcio-tools 1.71.2 and mypy-protobuf 3.6.0 (the oldest generator in use: its code runs with protobuf 5.29
to 7), in an environment of its own, because grpcio-tools pins an older protobuf. `make proto` sets that up.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTO = "spanreplay/v1/replay.proto"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Write the four generated files below `out`. Raises: SystemExit if protoc fails."""
    import importlib.resources

    from grpc_tools import protoc

    include = str(importlib.resources.files("grpc_tools") / "_proto")
    outputs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    status = protoc.main(["protoc", f"-I{HERE}", f"-I{include}", *outputs, PROTO])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


def main(argv: list[str]) -> int:
    """Generate in place, or compare with what is committed."""
    if "--check" not in argv:
        generate(HERE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        generate(out)
        stem = PROTO.removesuffix(".proto")
        stale = [
            stem + suffix
            for suffix in SUFFIXES
            if (out / (stem + suffix)).read_bytes() != (HERE / (stem + suffix)).read_bytes()
        ]
    if stale:
        sys.stderr.write(f"stale, run `make proto`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
