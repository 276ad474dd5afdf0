"""Looks at a folder that is not the agent's code."""

import os
from pathlib import Path

CALLS = 3


def use():
    folder = Path(os.environ["FOLDER"])
    return (folder / "nothing").exists(), os.access(folder, os.R_OK), sorted(each.name for each in folder.iterdir())
