"""`python -m spanreplay_kernels COMMAND …`: the command line of the kernels."""

from __future__ import annotations

import importlib
import sys
from types import MappingProxyType
from typing import Final

COMMANDS: Final = MappingProxyType(
    {
        "certify": ("spanreplay_kernels.proof.certify", "try whether an operation gives a row its bits in every batch"),
        "audit": ("spanreplay_kernels.audit_model", "list what a model runs, and what of it has no kernel of ours"),
        "aot": ("spanreplay_kernels.proof.aot_matrix", "compile every kernel for every architecture, without a GPU"),
        "serve": ("spanreplay_kernels.serve", "serve a model to OpenAI clients, its bits independent of the load"),
    }
)
"""Name of a command → (module whose `main(arguments)` runs it and returns the exit status, description)."""


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status; each module is imported only by its own command."""
    if not arguments or arguments[0] not in COMMANDS:
        listed = "\n".join(f"  {name:<8} {does}" for name, (_, does) in COMMANDS.items())
        sys.stderr.write(f"usage: python -m spanreplay_kernels COMMAND …\n{listed}\n")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("spanreplay_kernels"):
            raise
        # Only serve needs the packages of an engine's server
        hint = "pip install 'spanreplay[serve] @ git+https://github.com/spanreplay/spanreplay'"
        sys.stderr.write(f"{arguments[0]} needs {error.name}, which is not installed; {hint}\n")
        return 2
    return int(module.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
