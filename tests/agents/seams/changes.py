"""A file that is removed, and was there before."""

import os
from pathlib import Path

WITH = ("files",)
CALLS = 2
"""What was there is recorded before it is removed."""


def use():
    path = Path(os.environ["FOLDER"]) / "gone.txt"
    try:
        path.unlink()
    except FileNotFoundError:
        return "nothing to remove"
    return "removed"
