"""The folder of this package, as frames name it: code below it is not the agent's."""

from __future__ import annotations

import os
from typing import Final

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 -- pathlib costs start-up
BOOT_PARTS: Final = ("cli", "agent", "boot")
"""Path, below the package, of the folder that starts spanreplay in an agent's Python."""
