"""A replay's files go to a scratch overlay: only the agent sees them; the files at the end are compared."""

from __future__ import annotations

import hashlib
import shutil
import stat
from pathlib import Path

import pytest

from support.replaying import Workplace, assert_same

CALL = """
import os, pathlib, shutil, sys
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

print(ask("hello"))
"""


def fingerprint(*folders: Path) -> dict[str, str]:
    """Every file and folder of the world with its mode and content, except the recordings."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            shown = path.relative_to(folder).as_posix()
            if shown.startswith(".spanreplay") or shown == "verdict.json":
                continue
            if path.is_symlink():
                found[shown] = f"-> {path.readlink()}"
            elif path.is_file():
                found[shown] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            else:
                found[shown] = f"{path.stat().st_mode:o}"
    return found


EVERYTHING = (
    CALL
    + """
import glob, json, tempfile, stat

def tell(*values):
    print(*values)

here = pathlib.Path("work")
here.mkdir()
(here / "a.txt").write_text("one\\ntwo\\n")
tell((here / "a.txt").read_text(), os.path.exists("work/a.txt"), os.stat("work/a.txt").st_size, os.listdir("work"))
with open("work/a.txt", "a") as appended:
    tell(appended.name, appended.tell())
    appended.write("three\\n")
with open("work/a.txt", "r+") as changed:
    changed.seek(4)
    changed.write("TWO")
tell(open("work/a.txt").read(), open("work/a.txt", "rb").read(3))
os.makedirs("work/deep/er", exist_ok=True)
os.makedirs("work/deep/er", exist_ok=True)
shutil.copy("work/a.txt", "work/deep/er/b.txt")
shutil.copytree("work/deep", "work/copy")
os.rename("work/copy", "work/moved")
tell(sorted(str(p) for p in here.rglob("*")), sorted(glob.glob("work/**/*.txt", recursive=True)))
tell([sorted(x) if isinstance(x, list) else x for step in sorted(os.walk("work")) for x in step])
os.replace("work/moved/er/b.txt", "work/c.txt")
try:
    open("work/moved/er/b.txt")
except FileNotFoundError as error:
    tell(error)
os.unlink("work/a.txt")
tell(os.path.exists("work/a.txt"), sorted(os.listdir("work")))
try:
    os.rmdir("work")
except OSError as error:
    tell(error.strerror, error.filename)
try:
    os.mkdir("work")
except FileExistsError as error:
    tell(error)
shutil.rmtree("work/deep")
tell(sorted(os.listdir("work")))
os.chmod("work/c.txt", 0o600)
tell(oct(stat.S_IMODE(os.stat("work/c.txt").st_mode)))
os.symlink("c.txt", "work/link")
tell(os.readlink("work/link"), open("work/link").read())
tell(os.path.islink("work/link"), pathlib.Path("work/link").is_file())
os.truncate("work/c.txt", 3)
tell(os.path.getsize("work/c.txt"), pathlib.Path("work/c.txt").resolve() == pathlib.Path.cwd() / "work" / "c.txt")
os.chdir("work")
tell(os.path.basename(os.getcwd()), open("c.txt").read(), sorted(os.listdir()), [e.name for e in os.scandir(".")] != [])
open("in.json", "w").write(json.dumps({"a": 1}))
os.chdir("..")
tell(json.load(open("work/in.json")))

tell(open("given.txt").read())
with open("given.txt", "a") as given:
    given.write("more\\n")
tell(open("given.txt").read(), sorted(os.listdir(".")))
os.remove("old/gone.txt")
tell(os.listdir("old"), os.path.isfile("old/gone.txt"))
os.rmdir("old")
tell(os.path.isdir("old"))
pathlib.Path("given.txt").rename("renamed.txt")
tell(os.path.exists("given.txt"), pathlib.Path("renamed.txt").read_text())
with tempfile.TemporaryDirectory() as folder:
    inside = pathlib.Path(folder, "x.txt")
    inside.write_bytes(b"x")
    tell(inside.read_bytes(), len(os.listdir(folder)))
tell(os.path.exists(folder))
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as made:
    made.write("atomic")
os.replace(made.name, "atomic.txt")
with tempfile.TemporaryFile() as nameless:
    nameless.write(b"1"); nameless.seek(0); tell(nameless.read())
descriptor = os.open("raw.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
os.write(descriptor, b"\\x00\\xff")
os.close(descriptor)
tell(open("raw.bin", "rb").read(), open("atomic.txt").read())
try:
    open("raw.bin", "x")
except FileExistsError as error:
    tell(error)
"""
)


def _world(workplace: Workplace) -> None:
    (workplace.path / "given.txt").write_text("given\n", encoding="utf-8")
    (workplace.path / "old").mkdir()
    (workplace.path / "old" / "gone.txt").write_text("here", encoding="utf-8")


def test_n14_what_a_replay_writes_it_sees_and_the_world_does_not(workplace: Workplace, tmp_path: Path) -> None:
    """A replay sees the files that it writes, renames, removes, lists or links; the tree's hash is unchanged."""
    agent = workplace.write("agent.py", EVERYTHING)
    _world(workplace)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    # The replay works with the world as it was before the recording and as it was afterwards
    for name in ("renamed.txt", "atomic.txt", "raw.bin"):
        (workplace.path / name).unlink()
    shutil.rmtree(workplace.path / "work")
    _world(workplace)
    before = fingerprint(workplace.path)
    assert_same(workplace.replay(agent), recorded.stdout)
    assert fingerprint(workplace.path) == before


def test_n14_files_that_the_recorded_run_made_are_not_there_yet(workplace: Workplace) -> None:
    """With the recording's results still present, a replay sees the earlier world, and doesn't touch them."""
    source = CALL + (
        "print(os.path.exists('out'), os.path.exists('report.txt'))\n"
        "os.mkdir('out')\n"
        "with open('report.txt', 'x') as report: report.write('done')\n"
        "pathlib.Path('out/part.txt').write_text('part')\n"
        "print(os.listdir('out'), 'report.txt' in os.listdir('.'))\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    assert recorded.stdout.endswith("False False\n['part.txt'] True\n")
    before = fingerprint(workplace.path)
    assert_same(workplace.replay(agent), recorded.stdout)
    assert fingerprint(workplace.path) == before


REPORT = CALL + (
    "with open('report.txt', 'w') as report:\n"
    "    for number in range(3): report.write(f'line {number} {sys.argv[1] if number == 1 else ask(number)}\\n')\n"
)


def test_n14_a_file_with_other_content_is_a_divergence_at_its_first_line(workplace: Workplace) -> None:
    """If only the file's content differs, the report names the file and the line."""
    agent = workplace.write("agent.py", REPORT)
    workplace.record(agent, "as it was")
    before = fingerprint(workplace.path)
    replayed = workplace.replay(agent, "as it is")
    assert replayed.status == 3
    assert replayed.causes() == [("file_changed", "file:report.txt")]
    (divergence,) = replayed.verdict["divergences"]
    assert divergence["message"] == "report.txt line 2 differs"
    assert "report.txt line 2" in replayed.stderr
    assert fingerprint(workplace.path) == before


def test_n14_a_file_that_is_missing_or_new_is_a_divergence(workplace: Workplace) -> None:
    """A different file name gives two differences: a missing file and a new one."""
    agent = workplace.write("agent.py", CALL + "pathlib.Path(sys.argv[1]).write_text('x')\n")
    workplace.record(agent, "a.txt")
    replayed = workplace.replay(agent, "b.txt")
    assert [d["boundary"] for d in replayed.verdict["divergences"]] == ["file:a.txt", "file:b.txt"]
    assert not (workplace.path / "b.txt").exists()


def test_written_secrets_are_not_in_the_recording(workplace: Workplace) -> None:
    """The manifest holds the file's text in redacted form, and the hash of the redacted text."""
    secret = "sk-proj-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
    agent = workplace.write("agent.py", CALL + "pathlib.Path('key.txt').write_text('key ' + sys.argv[1])\n")
    recorded = workplace.record(agent, secret)
    files = workplace.recording().root.manifest["files"]
    digest = hashlib.sha256(f"key {secret}".encode()).hexdigest()
    spool = b"".join(p.read_bytes() for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file())
    assert files["key.txt"]["text"].startswith("key rdx-")
    assert (secret.encode() in spool, digest.encode() in spool) == (False, False)
    assert_same(workplace.replay(agent, secret), recorded.stdout)


def test_data_files_changed_in_place_begin_as_they_were(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file opened `r+` is an input: a replay on a machine without it still modifies the recorded content."""
    data = tmp_path_factory.mktemp("data") / "counter.txt"
    data.write_text("41", encoding="utf-8")
    source = CALL + (
        "with open(sys.argv[1], 'r+') as counter:\n"
        "    number = int(counter.read()) + 1\n"
        "    counter.seek(0); counter.write(str(number)); counter.truncate()\n"
        "print(open(sys.argv[1]).read())\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, str(data))
    assert recorded.stdout.endswith("42\n")
    assert_same(workplace.replay(agent, str(data)), recorded.stdout)
    assert data.read_text() == "42"
    data.unlink()
    assert_same(workplace.replay(agent, str(data)), recorded.stdout)
    assert not data.exists()


LIBRARY = CALL + (
    "import logging\n"
    "logging.basicConfig(filename='agent.log', force=True)\n"
    "logging.warning('started')\n"
    "logging.shutdown()\n"
    "print(os.path.exists('agent.log'))\n"
)


def test_n14_log_files_stay_in_the_overlay_and_are_not_compared(workplace: Workplace) -> None:
    """Log files of a library contain times; they go to the overlay too, and are no divergence."""
    agent = workplace.write("agent.py", LIBRARY)
    recorded = workplace.record(agent)
    log = workplace.path / "agent.log"
    log.write_text("the recording's", encoding="utf-8")
    assert_same(workplace.replay(agent), recorded.stdout)
    assert log.read_text() == "the recording's"
    assert "files" in workplace.recording().root.manifest
    assert workplace.recording().root.manifest["files"] == {}


OWN_HANDLER = """
import logging, os, sys
import spanreplay

class Lines(logging.Handler):
    def emit(self, record):
        with open("agent.jsonl", "a") as file:
            file.write(record.getMessage() + "\\n")
        print(len(open("agent.jsonl").readlines()), file=sys.stderr)

logging.basicConfig(level="DEBUG", handlers=[Lines()])

@spanreplay.boundary("tool", name="ask")
def ask(text):
    logging.debug("sent %s", os.getpid())
    return text.upper()

logging.info("begins")
with open("answers.txt", "a") as answers:
    answers.write(ask(sys.argv[1]) + os.environ.get("MORE", ""))
logging.info("ends")
"""


def test_n14_files_of_the_agents_own_log_handler_are_logs(workplace: Workplace) -> None:
    """What is logged inside a call is missing in a replay: such a file is not compared, as one of `logging`'s own."""
    agent = workplace.write("agent.py", OWN_HANDLER)
    recorded = workplace.record(agent, "apples")
    log = workplace.path / "agent.jsonl"
    assert log.read_text().startswith("begins\nsent ")
    assert list(workplace.recording().root.manifest["files"]) == ["answers.txt"]
    log.unlink()
    assert_same(workplace.replay(agent, "apples"), recorded.stdout)
    assert not log.exists()
    assert workplace.replay(agent, "apples", MORE="!").causes() == [("file_changed", "file:answers.txt")]


LIVE = """
import pathlib, spanreplay

@spanreplay.boundary("tool", name="save", effect="write")
def save(text):
    pathlib.Path("saved.txt").write_text(text)
    return "saved"

print(save("text"))
"""


def test_s2_a_live_call_writes_for_real_where_the_plan_says_so(workplace: Workplace) -> None:
    """A stubbed tool writes no file; the same tool run live writes it."""
    agent = workplace.write("agent.py", LIVE)
    recorded = workplace.record(agent)
    saved = workplace.path / "saved.txt"
    saved.unlink()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert not saved.exists()
    assert workplace.replay(agent, options=["--live", "tool:save"]).status == 0
    assert saved.read_text() == "text"
    assert stat.S_ISREG(saved.stat().st_mode)


def test_no_scratch_folder_is_left_behind(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The overlay is removed when the replay ends."""
    folder = tmp_path_factory.mktemp("temporary")
    agent = workplace.write("agent.py", CALL + "pathlib.Path('a.txt').write_text('x')\n")
    workplace.record(agent)
    workplace.replay(agent, TMPDIR=str(folder))
    assert list(folder.iterdir()) == []


def test_s62_a_binary_file_is_compared_by_size_with_another_redaction_key(workplace: Workplace) -> None:
    """The hash of such a file is made with the key: an unchanged agent replays identical, and the file is named."""
    source = f"{CALL}open('out.bin', 'wb').write(bytes([200, 201, 202]))\n"
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    (workplace.path / ".spanreplay" / "redact.key").unlink()
    replayed = workplace.replay(agent)
    assert_same(replayed, recorded.stdout)
    assert ["out.bin"] in [each.get("names") for each in replayed.verdict["not_compared"]]
    assert "content of out.bin" in replayed.stderr
    workplace.write("agent.py", source.replace("202]", "202, 203]"))
    changed = workplace.replay(agent)
    assert changed.verdict["divergences"][0]["boundary"] == "file:out.bin", changed.stderr
