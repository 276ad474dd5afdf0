"""An agent uses files that only the recorded machine has, through descriptors and as whole trees."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

USES: Final = {
    "memory map": """
with open(folder / "table.csv", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
    print(content[:5], content.find(b"2"))
""",
    "lock": """
with open(folder / "table.csv") as file:
    fcntl.flock(file, fcntl.LOCK_SH)
    print(file.readline(), os.fstat(file.fileno()).st_size, file.fileno() > 2, file.read())
try:
    file.fileno()
except ValueError as error:
    print(error)
""",
    "descriptor": """
with open(folder / "table.csv", "rb", buffering=0) as file:
    print(file.read(3), os.read(file.fileno(), 3), os.pread(file.fileno(), 3, 1))
""",
    "tree": """
shutil.copytree(folder / "tree", folder / "copy")
print(sorted(os.listdir(folder / "copy")), (folder / "copy" / "a.txt").read_text())
shutil.copy2(folder / "table.csv", folder / "copy")
shutil.move(folder / "copy", folder / "moved")
print(sorted(path.name for path in (folder / "moved").iterdir()))
""",
}


@pytest.mark.parametrize("use", USES)
def test_s62_files_of_the_recorded_machine_are_used_as_there(tmp_path: Path, use: str) -> None:
    """The replay's machine has none of them, and has none afterwards."""
    data, code = tmp_path / "data", tmp_path / "code"
    (data / "tree" / "inner").mkdir(parents=True)
    code.mkdir()
    (data / "tree" / "a.txt").write_text("a")
    (data / "tree" / "inner" / "b.txt").write_text("b")
    (data / "table.csv").write_text("x,1\ny,2\n")
    place = Workplace(code)
    imports = "import fcntl, mmap, os, pathlib, shutil\n"
    place.write("agent.py", f"{imports}folder = pathlib.Path({str(data)!r})\n{USES[use]}")
    recorded = place.record("agent.py")
    shutil.rmtree(data)
    replayed = place.replay("agent.py")
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert not data.exists()
