"""A data file that is read."""

import os
from pathlib import Path


def use():
    path = Path(os.environ["FOLDER"]) / "notes.txt"
    path.write_text("milk", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        return file.read()
