"""An agent appends to a file outside its code and reads it: what was there before is an input of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

WAYS: Final = {
    "read": """
with open(path, "a") as file:
    file.write("mine\\n")
print(open(path).read())
""",
    "again": """
for word in ("one", "two"):
    with path.open("a") as file:
        file.write(word + "\\n")
    print(path.read_text().splitlines(), os.path.getsize(path) > 0)
""",
    "both": """
with open(path, "a+") as file:
    file.write("mine\\n")
    file.seek(0)
    print(file.read())
""",
    "descriptor": """
descriptor = os.open(path, os.O_RDWR)
print(os.read(descriptor, 100))
os.write(descriptor, b"mine")
os.close(descriptor)
print(path.read_bytes())
""",
    "appending descriptor": """
descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
os.write(descriptor, b"mine")
os.close(descriptor)
descriptor = os.open(path, os.O_RDONLY)
print(os.read(descriptor, 100))
""",
    "open while it is read": """
file = open(path, "a", buffering=1)
file.write("mine\\n")
print(path.read_text())
file.write("more\\n")
file.close()
print(path.read_text())
""",
    "replaced": """
with open(path, "a") as file:
    file.write("mine\\n")
path.write_text("new\\n")
print(path.read_text())
""",
}
START: Final = "import os, pathlib\npath = pathlib.Path({!r})\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file outside of the agent's code."""
    (tmp_path / "state").mkdir()
    found = tmp_path / "state" / "journal.md"
    found.write_text("earlier\nlines\n", encoding="utf-8")
    return found


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """The folder of the agent's code."""
    folder = tmp_path / "code"
    folder.mkdir()
    return Workplace(folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", ["missing", "longer", "as it was left"])
def test_s62_what_was_there_before_is_read_again(path: Path, place: Workplace, way: str, there: str) -> None:
    """On a machine that lacks the file, or has another one, which is left alone; a change is named."""
    place.write("agent.py", START.format(str(path)) + WAYS[way])
    recorded = place.record("agent.py")
    left = path.read_text(encoding="utf-8")
    if there == "missing":
        path.unlink()
        path.parent.rmdir()
    elif there == "longer":
        path.write_text("of this machine\n" * 5, encoding="utf-8")
    replayed = place.replay("agent.py")
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert path.exists() == (there != "missing")
    if there != "missing":
        assert path.read_text(encoding="utf-8") == (left if there == "as it was left" else "of this machine\n" * 5)
    place.write("agent.py", START.format(str(path)) + WAYS[way].replace("mine", "yours").replace("two", "three"))
    assert place.replay("agent.py").status == 3


def test_s62_a_file_that_is_only_appended_to_is_not_recorded(path: Path, place: Workplace) -> None:
    """A journal may be large, and hold what is nobody's business."""
    place.write("agent.py", START.format(str(path)) + "path.open('a').write('mine')\nprint(path.exists())\n")
    place.record("agent.py")
    calls = place.recording().calls
    assert not [call for call in calls if call.name == "earlier_content"]
    assert not any("earlier" in call.response for call in calls)


def test_s62_a_file_that_is_too_large_is_named(path: Path, place: Workplace) -> None:
    """The run says that it is incomplete, and why."""
    path.write_bytes(b"x" * (17 * 1024 * 1024))
    source = "with path.open('a') as file:\n    file.write('mine')\nprint(len(path.read_text()))\n"
    place.write("agent.py", START.format(str(path)) + source)
    place.record("agent.py")
    assert "the agent appended to" in str(place.recording().root.manifest["holes"])
    assert place.replay("agent.py").status == 4
