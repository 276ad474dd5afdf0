"""Facts about files that an agent learns without opening them are recorded, and replay if those files are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.agents import ENVIRONMENTS
from support.replaying import Replayed, Workplace


@pytest.fixture
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the agent's code."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "inbox").mkdir()
    for name in ("b.txt", "a.txt"):
        (folder / "inbox" / name).write_text(f"letter {name}", encoding="utf-8")
    (folder / "inbox" / "old").mkdir()
    (folder / "inbox" / "old" / "z.txt").write_text("zzz", encoding="utf-8")
    (folder / "inbox" / "link.txt").symlink_to("a.txt")
    (folder / "inbox" / "broken").symlink_to("nowhere")
    return folder


def assert_identical(replayed: Replayed, stdout: str) -> None:
    """The replay printed the same bytes and says so."""
    assert replayed.stdout == stdout, replayed.stderr
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.status == 0


def empty(folder: Path) -> None:
    """Remove the folder, as on another machine."""
    shutil.rmtree(folder)


LOOKS = """
import filecmp, glob, os, pathlib, shutil, stat, sys
inbox = pathlib.Path(sys.argv[1]) / "inbox"
text = str(inbox)

def tell(*values):
    print(*values)

def failing(function, *args, **kwargs):
    try:
        tell(function(*args, **kwargs))
    except OSError as error:
        tell(type(error).__name__, error)

tell(inbox.exists(), inbox.is_dir(), (inbox / "a.txt").is_file(), (inbox / "none").exists())
tell(os.listdir(inbox), os.listdir(text.encode()), sorted(p.name for p in inbox.iterdir()))
with os.scandir(text) as entries:
    tell(sorted((e.name, e.is_dir(), e.is_file(), e.is_file(follow_symlinks=False), e.is_symlink()) for e in entries))
with os.scandir(os.fsencode(inbox)) as entries:
    tell(sorted((e.name, e.stat(follow_symlinks=False).st_size, e.inode()) for e in entries))
tell(sorted(glob.glob(text + "/**", recursive=True)), glob.glob("*.txt", root_dir=inbox) != [])
tell(sorted(p.name for p in inbox.rglob("*.txt")), sorted(p.name for p in inbox.glob("o*/*")))
tell([(d, sorted(ds), sorted(fs)) for d, ds, fs in sorted(os.walk(inbox))])
status = os.stat(inbox / "a.txt")
tell(status.st_size, status.st_mtime, status.st_mtime_ns, tuple(status), stat.filemode(status.st_mode))
tell(os.path.getmtime(text + "/a.txt"), os.path.getsize(inbox / "b.txt"), os.lstat(inbox / "link.txt").st_size)
tell(os.path.islink(inbox / "link.txt"), os.readlink(inbox / "link.txt"), os.path.lexists(inbox / "broken"))
tell(os.access(inbox, os.R_OK), os.access(inbox / "none", os.F_OK))
tell(os.path.samefile(inbox / "a.txt", inbox / "link.txt"), os.path.isdir(os.fsencode(inbox)))
tell(filecmp.cmp(inbox / "a.txt", inbox / "b.txt", shallow=False))
failing(os.stat, inbox / "none")
failing(os.listdir, inbox / "none")
failing(os.scandir, text + "/none")
failing(os.readlink, (text + "/a.txt").encode())
failing(os.listdir, inbox / "a.txt")
tell(os.path.exists(__file__), pathlib.Path(__file__).resolve().name, os.stat in os.supports_follow_symlinks)
"""


@pytest.mark.parametrize("world", ["as it was", "changed", "gone"])
def test_s50_looks_at_files_replay_whatever_is_there_now(world: str, workplace: Workplace, data: Path) -> None:
    """Existence, sizes, times, names and links are as recorded, including errors."""
    agent = workplace.write("agent.py", LOOKS)
    recorded = workplace.record(agent, str(data))
    assert {c.effect for c in workplace.recording().calls} == {"read"}
    if world == "changed":
        (data / "inbox" / "c.txt").write_text("new", encoding="utf-8")
        (data / "inbox" / "b.txt").unlink()
        (data / "inbox" / "none").mkdir()
        (data / "inbox" / "a.txt").write_text("another length", encoding="utf-8")
    elif world == "gone":
        empty(data)
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)


def test_s50_looks_at_the_code_tree_are_no_calls(workplace: Workplace) -> None:
    """Code is looked at as it is now: a change in it is what the user wants to see."""
    workplace.write("prompt.txt", "be careful")
    agent = workplace.write(
        "agent.py",
        "import os, pathlib, spanreplay\nhere = pathlib.Path(__file__).resolve().parent\n"
        "print(spanreplay.boundary('tool', name='ask')(len)('four'))\n"
        "print(sorted(p.name for p in here.glob('*.txt')), (here / 'prompt.txt').exists(), os.path.isdir('.'))\n",
    )
    recorded = workplace.record(agent)
    assert [c.name for c in workplace.recording().calls] == ["ask"]
    assert_identical(workplace.replay(agent), recorded.stdout)


INBOX = """
import os, pathlib, shutil, sys
root = pathlib.Path(sys.argv[1])
inbox, done, report = root / "inbox", root / "done", root / "reports" / "today" / "report.txt"
done.mkdir(exist_ok=True)
report.parent.mkdir(parents=True, exist_ok=True)
for letter in sorted(inbox.glob("?.txt")):
    text = letter.read_text()
    with open(report, "a") as out:
        out.write(text.upper() + "\\n")
    if letter.name == "a.txt":
        letter.rename(done / letter.name)
    else:
        shutil.move(letter, done)
os.remove(inbox / "link.txt")
shutil.rmtree(inbox / "old")
(inbox / "broken").unlink()
print(sorted(os.listdir(inbox)), sorted(os.listdir(done)), sorted(p.name for p in root.iterdir()))
print(report.read_text(), (done / "b.txt").read_text(), (inbox / "a.txt").exists(), (inbox / "old").exists())
inbox.rmdir()
print(inbox.exists(), sorted(p.name for p in root.iterdir()))
shutil.copy(done / "b.txt", root / "copy.txt")
os.chmod(root / "copy.txt", 0o600)
print(sorted(p.name for p in root.iterdir()), (root / "copy.txt").read_text())
try:
    os.rename(root / "nothing", root / "something")
except FileNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("world", ["as the run left it", "gone", "as it was"])
def test_s50_n14_an_agent_that_empties_its_inbox_replays(
    world: str, workplace: Workplace, data: Path, tmp_path: Path
) -> None:
    """Files that the run moved or removed are there again in its replay, and the real files stay untouched."""
    agent = workplace.write("agent.py", INBOX)
    before = tmp_path / "before"
    shutil.copytree(data, before, symlinks=True)
    recorded = workplace.record(agent, str(data))
    assert "letter b.txt" in recorded.stdout
    if world != "as the run left it":
        empty(data)
    if world == "as it was":
        shutil.copytree(before, data, symlinks=True)
    left = sorted(data.rglob("*"))
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)
    assert sorted(data.rglob("*")) == left
    assert data.exists() == (world != "gone")


OUTSIDERS = """
import os, pathlib, subprocess, sys, tempfile
root = pathlib.Path(sys.argv[1])
subprocess.run(["sh", "-c", f"mkdir {root}/clone && echo one > {root}/clone/one.txt"], check=True)
print((root / "clone").is_dir(), os.listdir(root / "clone"), (root / "clone" / "one.txt").read_text())
with tempfile.TemporaryDirectory() as folder:
    print(os.listdir(folder), os.path.exists(folder))
    pathlib.Path(folder, "own.txt").write_text("own")
    subprocess.run(["sh", "-c", f"echo two > {folder}/two.txt"], check=True)
    print(sorted(os.listdir(folder)), sorted(e.name for e in os.scandir(folder) if e.is_file()))
    print(open(folder + "/two.txt").read(), open(folder + "/own.txt").read(), os.path.getsize(folder + "/two.txt"))
print(os.path.exists(folder))
with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    file.write("x" * 10)
    file.flush()
    print(os.path.getsize(file.name), os.path.exists(file.name), open(file.name).read())
left = tempfile.mkdtemp(prefix="left-", dir=root)
print(left, subprocess.run(["sh", "-c", f"echo {left}; touch {left}/by-sh"], stdout=subprocess.PIPE).stdout)
print(os.listdir(left))
handle, name = tempfile.mkstemp()
os.write(handle, b"abc")
os.close(handle)
print(os.path.getsize(name), open(name).read())
os.unlink(name)
print(os.path.exists(name))
"""


def test_s50_what_programs_make_is_found_though_none_is_started(workplace: Workplace, data: Path) -> None:
    """A replay starts no program; the agent finds the files that programs created, in folders of any name."""
    agent = workplace.write("agent.py", OUTSIDERS)
    recorded = workplace.record(agent, str(data))
    assert "['own.txt', 'two.txt'] ['own.txt', 'two.txt']" in recorded.stdout
    empty(data)
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)


def test_s50_another_listing_is_the_divergence_that_is_named(workplace: Workplace, data: Path) -> None:
    """If the code now lists another folder, the divergence names the folder and the line."""
    source = "import os, sys\nprint(sorted(os.listdir(sys.argv[1] + '/inbox')))\n"
    agent = workplace.write("agent.py", source)
    workplace.record(agent, str(data))
    workplace.write("agent.py", source.replace("/inbox", "/inbox/old"))
    replayed = workplace.replay(agent, str(data))
    assert replayed.status == 3
    assert replayed.causes()[0] == ("changed_call", "tool:listdir")
    assert "agent.py:2" in replayed.stderr
    assert "inbox/old" in replayed.stderr


def test_s50_writing_into_a_folder_that_is_not_here(workplace: Workplace, data: Path) -> None:
    """An agent that writes to a folder replays on a machine without it, and also if the recorded write failed."""
    source = (
        "import sys\n"
        "with open(sys.argv[1] + '/out.txt', 'w') as out:\n"
        "    out.write('done')\n"
        "print(open(sys.argv[1] + '/out.txt').read())\n"
        "try:\n"
        "    open(sys.argv[1] + '/later/out.txt', 'w')\n"
        "except FileNotFoundError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    open(sys.argv[1] + '/inbox/a.txt', 'x')\n"
        "except FileExistsError as error:\n"
        "    print(error)\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, str(data))
    empty(data)
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)
    (data / "later").mkdir(parents=True)
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)
    assert [p.name for p in data.iterdir()] == ["later"]


DOCUMENTS = """
import sys
from llama_index.core import SimpleDirectoryReader

for document in SimpleDirectoryReader(sys.argv[1], recursive=True).load_data():
    print(document.metadata["file_name"], document.metadata["file_size"], document.text)
"""


@pytest.mark.slow
def test_s50_a_librarys_reader_of_folders_replays(workplace: Workplace) -> None:
    """LlamaIndex reads a folder beside the agent's code folder through fsspec."""
    python = ENVIRONMENTS["openai2"]
    if not python.exists():
        pytest.skip(f"no {python}: `make matrix` makes it")
    documents = workplace.path.parent / f"{workplace.path.name}-documents"
    (documents / "deep").mkdir(parents=True)
    (documents / "a.txt").write_text("apples", encoding="utf-8")
    (documents / "deep" / "b.md").write_text("bread", encoding="utf-8")
    there = Workplace(workplace.path, workplace.environ, python)
    agent = there.write("agent.py", DOCUMENTS)
    recorded = there.record(agent, str(documents))
    assert ("apples" in recorded.stdout, "bread" in recorded.stdout) == (True, True)
    empty(documents)
    assert_identical(there.replay(agent, str(documents)), recorded.stdout)


def test_s50_too_many_names_are_a_hole(workplace: Workplace, data: Path) -> None:
    """A folder with too many names to record makes a run incomplete, not wrong."""
    from spanreplay.model import config

    many = data / "many"
    many.mkdir()
    for number in range(config.LISTED_NAMES_MAX + 1):
        (many / str(number)).touch()
    agent = workplace.write("agent.py", "import os, sys\nprint(len(os.listdir(sys.argv[1] + '/many')))\n")
    recorded = workplace.record(agent, str(data))
    assert recorded.stdout == f"{config.LISTED_NAMES_MAX + 1}\n"
    replayed = workplace.replay(agent, str(data))
    assert replayed.status == 4
    assert f"more than {config.LISTED_NAMES_MAX} names" in replayed.stderr


OWN = """
import os, pathlib, sys
root = pathlib.Path(sys.argv[1])
(root / "made").mkdir()
own = root / "made" / "own.txt"
own.write_text("mine")

def tell(found):
    print(found.st_ino, found.st_dev, found.st_blocks, found.st_blksize, found.st_nlink, found.st_size)
    print(found.st_mtime_ns, found.st_ctime_ns)

with own.open() as opened:
    tell(os.fstat(opened.fileno()))
    print(os.path.samestat(own.stat(), os.fstat(opened.fileno())), os.stat(opened.fileno()).st_ino)
tell(own.lstat())
tell((root / "made").stat())
own.write_text("mine again")
print(own.stat().st_size, os.path.samefile(own, root / "made" / ".." / "made" / "own.txt"))
"""


def test_s50_n14_numbers_of_the_runs_own_files_are_the_recorded_ones(workplace: Workplace, data: Path) -> None:
    """Files that the run made have their recorded inodes, devices and times: an index such as git's keeps them."""
    agent = workplace.write("agent.py", OWN)
    recorded = workplace.record(agent, str(data))
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)
    empty(data)
    assert_identical(workplace.replay(agent, str(data)), recorded.stdout)


KEEPER = """
import os

def begin(root):
    folder = os.path.join(root, "keeper")
    if os.path.isdir(folder):
        return "again"
    os.makedirs(os.path.join(folder, "startup"))
    return "first"
"""


def test_s50_a_folder_that_plumbing_made_is_missing_when_a_replay_begins(workplace: Workplace, data: Path) -> None:
    """What code other than the agent's decides by a folder that it makes itself is decided as recorded."""
    workplace.write("keeper.py", KEEPER)
    agent = workplace.write(
        "agent.py", "import keeper, os, sys\nprint(os.listdir(sys.argv[1]), keeper.begin(sys.argv[1]))\n"
    )
    recorded = workplace.record(agent, str(data), SPANREPLAY_PLUMBING="keeper")
    assert "first" in recorded.stdout
    assert (data / "keeper" / "startup").is_dir()
    replayed = workplace.replay(agent, str(data), SPANREPLAY_PLUMBING="keeper")
    assert_identical(replayed, recorded.stdout)
