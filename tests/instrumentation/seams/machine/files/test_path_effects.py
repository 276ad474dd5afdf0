"""The agent's effects on files, folders and its own process are compared, even if no trace of them remains."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.changed import load, named, record_agent, replay_agent

AGENT = """
import os, pathlib, shutil, signal, tempfile

def agent():
    here = pathlib.Path("a.txt")
    here.write_text("x")
    os.chmod("a.txt", 0o600)
    os.mkdir("d"); os.rmdir("d")
    os.makedirs("deep/er/still", exist_ok=True)
    pathlib.Path("deep/er").chmod(0o700)
    os.utime("a.txt", (1, 2))
    os.truncate("a.txt", 0)
    os.chown("a.txt", os.getuid(), -1)
    os.setxattr("a.txt", "user.kind", b"old")
    os.removexattr("a.txt", "user.kind")
    os.mkfifo("pipe", 0o600); os.unlink("pipe")
    os.symlink("a.txt", "soft"); os.link("a.txt", "hard")
    os.rename("hard", "harder"); os.remove("harder")
    shutil.copy2("a.txt", "copy.txt")
    shutil.rmtree("deep")
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o640))
    with open("a.txt", "a") as file:
        os.fchmod(file.fileno(), 0o644)
    before = os.umask(0o077); os.umask(before)
    os.mkdir("work"); os.chdir("work"); os.chdir("..")
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder):
        pathlib.Path(folder, "inside").touch()
    os.kill(os.getppid(), 0)
"""
CHANGES = {
    "chmod": ("0o600)\n    os.mkdir", "0o666)\n    os.mkdir"),
    "rmdir_dropped": ('; os.rmdir("d")', ""),
    "mkdir_and_rmdir_dropped": ('os.mkdir("d"); os.rmdir("d")', "pass"),
    "path_chmod": ("0o700", "0o777"),
    "utime": ("(1, 2)", "(1, 3)"),
    "truncate": ('os.truncate("a.txt", 0)', 'os.truncate("a.txt", 1)'),
    "owner": ("os.getuid()", "12"),
    "attribute": ('b"old"', 'b"new"'),
    "attribute_kept": ('    os.removexattr("a.txt", "user.kind")\n', ""),
    "fifo": ('"pipe", 0o600', '"pipe", 0o666'),
    "link_to_another": ('os.symlink("a.txt"', 'os.symlink("b.txt"'),
    "hard_link": ('os.link("a.txt"', 'os.link("soft"'),
    "rename": ('os.rename("hard", "harder"); os.remove("harder")', 'os.remove("hard")'),
    "tree_dropped": ('    shutil.rmtree("deep")\n', ""),
    "created_with": ("0o640", "0o666"),
    "by_descriptor": ("0o644", "0o666"),
    "umask": ("0o077", "0o000"),
    "folder": ('os.chdir("work"); os.chdir("..")', "pass"),
    "signal": ("os.kill(os.getppid(), 0)", "pass"),
    "signal_to": ("os.kill(os.getppid(), 0)", "os.kill(0, 0)"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_n14_changes_of_paths_are_compared(folder: Path) -> None:
    """The same agent is identical; each changed effect is named, even if nothing remains of it."""
    run_id = record_agent(load(AGENT, folder))
    for path in [p for p in folder.iterdir() if p.name != ".spanreplay"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    mask = os.umask(0)
    os.umask(mask)
    same = replay_agent(run_id, load(AGENT, folder))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same
    for name, (old, new) in CHANGES.items():
        assert old in AGENT, name
        changed = replay_agent(run_id, load(AGENT.replace(old, new), folder))
        os.umask(mask)
        assert changed["verdict"] == "diverged", (name, changed)
        assert any(each.startswith(("tool:os.", "tool:shutil.")) for each in named(changed)), (name, named(changed))
