"""A run is recorded in production and replayed on a laptop: another user, another time zone, other processors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from spanreplay.recording.spool import SpoolCatalog
from support.provider import Provider
from support.replaying import Replayed, Workplace

ZONES: Final = ["Europe/Berlin", "America/New_York", ":Asia/Kolkata", "XYZ-5:30", "/usr/share/zoneinfo/Asia/Tokyo", ""]
LOCAL: Final = """
import datetime, email.utils, logging, sys, time
import openai

logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(asctime)s %(message)s")
logging.warning("begins")
print(datetime.datetime.now().isoformat(), time.strftime("%c"), email.utils.formatdate(localtime=True))
print(datetime.datetime.now(datetime.timezone.utc).astimezone().isoformat(), datetime.datetime.fromtimestamp(0))
print(time.localtime(1e9)[:6], time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1)))
print(datetime.datetime(2026, 7, 1).timestamp())
asked = [{"role": "user", "content": f"since {datetime.datetime.fromtimestamp(1.7e9)}"}]
print(openai.OpenAI().chat.completions.create(model="gpt-4o", messages=asked).choices[0].message.content)
"""
WHO: Final = """
import getpass, os, platform, subprocess
import openai

who = [os.environ.get(name, "none") for name in ("USER", "LOGNAME", "HOSTNAME", "SHELL")] + [getpass.getuser()]
machine = f"{platform.platform()}, {os.uname().release}, {platform.machine()}, {os.cpu_count()} processors"
asked = [{"role": "user", "content": f"I am {who} on {machine}"}]
print(openai.OpenAI().chat.completions.create(model="gpt-4o", messages=asked).choices[0].message.content)
print(subprocess.check_output(["sh", "-c", "echo $USER"], text=True))
"""


@pytest.fixture
def production(provider: Provider, tmp_path: Path) -> Workplace:
    """The workplace of the recording, whose machine is set to UTC."""
    folder = tmp_path / "production"
    folder.mkdir()
    url = f"http://127.0.0.1:{provider.port}/v1"
    environ = {"OPENAI_API_KEY": "sk-proj-Q7xr4TnB2vKe9WzLs5Ym", "OPENAI_BASE_URL": url, "TZ": "UTC", "USER": "prod"}
    return Workplace(folder, environ)


def _replay(production: Workplace, laptop: Path, options: Any = (), **environ: str) -> Replayed:
    """Replay the last recording in another folder, with its own variables."""
    laptop.mkdir(exist_ok=True)
    (laptop / "agent.py").write_text((production.path / "agent.py").read_text(encoding="utf-8"))
    catalog = SpoolCatalog(production.path / ".spanreplay")
    try:
        (laptop / "x.replay").write_bytes(catalog.export(production.recordings()[-1].run_id))
    finally:
        catalog.close()
    return Workplace(laptop).replay("agent.py", source=str(laptop / "x.replay"), options=options, **environ)


@pytest.mark.parametrize("zone", ZONES)
def test_s62_times_are_shown_in_the_recorded_time_zone(production: Workplace, tmp_path: Path, zone: str) -> None:
    """On a laptop in another zone logs, prompts and computed times are the same; in the same zone nothing is said."""
    production.write("agent.py", LOCAL)
    recorded = production.record("agent.py")
    done = _replay(production, tmp_path / "laptop", TZ=zone)
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    assert ("as on the recorded machine: time zone UTC" in done.stderr) == bool(zone)
    if zone:
        assert done.verdict["recorded_env"]["machine"] == ["time zone UTC"]
        environ = {**production.environ, "TZ": zone}
        bare = _replay(production, tmp_path / "laptop", options=["--no-recorded-env"], **environ)
        assert bare.stdout != recorded.stdout


@pytest.mark.parametrize("zone", ZONES)
def test_s62_the_zone_of_production_is_shown_on_a_laptop_in_utc(
    production: Workplace, tmp_path: Path, zone: str
) -> None:
    """Whether it was given by name, by file or as a rule."""
    production.write("agent.py", LOCAL)
    recorded = production.record("agent.py", TZ=zone)
    done = _replay(production, tmp_path / "laptop", TZ="UTC")
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout


def test_s62_a_program_may_set_its_own_time_zone(production: Workplace, tmp_path: Path) -> None:
    """What it sets holds, and what it reads of its environment is as recorded."""
    source = (
        "import os, time\nprint(os.environ.get('TZ'), time.tzname)\nos.environ['TZ'] = 'Asia/Tokyo'\ntime.tzset()\n"
    )
    production.write("agent.py", source + LOCAL)
    recorded = production.record("agent.py")
    assert "JST" in recorded.stdout or "+0900" in recorded.stdout
    done = _replay(production, tmp_path / "laptop", TZ="America/New_York")
    assert done.stdout.splitlines()[1:] == recorded.stdout.splitlines()[1:]


@pytest.mark.parametrize("level", ["calls", "full"])
def test_s62_a_user_and_a_machine_are_those_of_the_recording(production: Workplace, tmp_path: Path, level: str) -> None:
    """A prompt that names them is the same; the verdict says which variables are not this machine's."""
    production.write("agent.py", WHO)
    recorded = production.record("agent.py", SPANREPLAY_LEVEL=level, HOSTNAME="pod-17")
    done = _replay(production, tmp_path / "laptop", USER="me", LOGNAME="me", HOSTNAME="laptop", SHELL="/bin/zsh")
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    assert done.verdict["recorded_env"]["machine"] == ["HOSTNAME", "LOGNAME", "SHELL", "USER"]
    environ = {**production.environ, "USER": "me"}
    bare = _replay(production, tmp_path / "laptop", options=["--no-recorded-env"], **environ)
    assert bare.status == 3
    assert "USER" in bare.stderr


FILES: Final = """
import os, pathlib, subprocess, sys, tempfile
import openai

pathlib.Path("folder").mkdir()
made = pathlib.Path("folder/made.txt")
made.write_text("x")
mask = subprocess.check_output(["sh", "-c", "umask"], text=True)
print(oct(made.stat().st_mode), oct(made.parent.stat().st_mode), mask)
with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    asked = [{"role": "user", "content": f"the table is in {file.name}, {oct(os.stat(file.name).st_mode)}"}]
    print(openai.OpenAI().chat.completions.create(model="gpt-4o", messages=asked).choices[0].message.content)
"""


@pytest.mark.parametrize("level", ["calls", "full"])
def test_s62_files_are_made_as_on_the_recorded_machine(production: Workplace, tmp_path: Path, level: str) -> None:
    """With the same modes, and below the folder for temporary files that a prompt names."""
    production.write("agent.py", FILES)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = os.umask(0o027)
    try:
        recorded = production.record("agent.py", SPANREPLAY_LEVEL=level)
        os.umask(0o077)
        done = _replay(production, tmp_path / "laptop", TMPDIR=str(temporary))
    finally:
        os.umask(before)
    assert "0o100640 0o40750 0027" in recorded.stdout
    assert done.status == 0, done.stderr
    assert done.stdout.replace(str(temporary), "/tmp") == recorded.stdout
    assert list(temporary.iterdir()) == []


PROGRAM: Final = """
import subprocess
from dotenv import load_dotenv
import openai

load_dotenv()
print(subprocess.check_output(["echo", "first"], text=True))
asked = [{"role": "user", "content": "hello"}]
print(openai.OpenAI().chat.completions.create(model="gpt-4o", messages=asked).choices[0].message.content)
"""


def test_s62_a_program_gets_what_an_env_file_here_sets(production: Workplace, tmp_path: Path) -> None:
    """Production sets variables, a laptop has a file: the program that the agent starts is given the same or others."""
    production.write("agent.py", PROGRAM)
    recorded = production.record("agent.py")
    laptop = Workplace(tmp_path / "laptop")
    laptop.path.mkdir()
    laptop.write(".env", "OPENAI_API_KEY='sk-proj-other-Key-123456'\nOPENAI_BASE_URL=http://mine/v1\nTONE=a pirate\n")
    done = _replay(production, laptop.path)
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    production.write("agent.py", PROGRAM.replace('"first"],', '"first"], env={"A": "1"},'))
    changed = _replay(production, laptop.path)
    assert changed.status == 3
    assert "call 1" in changed.stderr.splitlines()[0]
