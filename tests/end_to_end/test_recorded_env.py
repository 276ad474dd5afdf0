"""A replay needs no key: the agent gets recorded variables and `.env` files that are missing on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from spanreplay.recording.spool import SpoolCatalog
from support.nested_pytest import OURS
from support.provider import Provider
from support.replaying import Replayed, Workplace

KEY: Final = "sk-proj-Q7xr4TnB2vKe9WzLs5Ym"
PASSWORD: Final = "swordfish_blue_77"
UNUSED: Final = "never-read-by-anybody-4711"

OPENAI: Final = """
import os
import openai
client = openai.OpenAI()
asked = [{"role": "user", "content": f"speak as {os.environ.get('TONE', 'nobody')}"}]
print(client.chat.completions.create(model=os.environ["MODEL"], messages=asked).choices[0].message.content)
"""
PYDANTIC_AI: Final = """
import os
from pydantic_ai import Agent
agent = Agent("openai-chat:" + os.environ["MODEL"], system_prompt="speak as " + os.environ["TONE"])
print(agent.run_sync("hello").output)
"""
LANGGRAPH: Final = """
import os
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
agent = create_react_agent(ChatOpenAI(model=os.environ["MODEL"]), tools=[])
print(agent.invoke({"messages": [("user", "speak as " + os.environ["TONE"])]})["messages"][-1].content)
"""
DOTENV: Final = "from dotenv import load_dotenv\nassert load_dotenv()\n" + OPENAI
SETTINGS: Final = """
import openai
from pydantic_settings import BaseSettings, SettingsConfigDict

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_file=".env", env_prefix="DESK_", extra="ignore")
    api_key: str
    base_url: str
    model: str

settings = Settings()
client = openai.OpenAI(api_key=settings.api_key, base_url=settings.base_url)
asked = [{"role": "user", "content": "hello"}]
print(client.chat.completions.create(model=settings.model, messages=asked).choices[0].message.content)
"""
COPY: Final = """
import os
import openai
config = {"MODEL": "none", **os.environ}
client = openai.OpenAI(api_key=config["DESK_API_KEY"], base_url=config["DESK_BASE_URL"])
asked = [{"role": "user", "content": "hello"}]
print(client.chat.completions.create(model=config["DESK_MODEL"], messages=asked).choices[0].message.content)
"""


@pytest.fixture
def laptop(tmp_path: Path) -> Workplace:
    """Another folder, on a machine that has none of the variables and no redaction key."""
    folder = tmp_path / "laptop"
    folder.mkdir()
    return Workplace(folder)


@pytest.fixture
def server(provider: Provider, tmp_path: Path) -> Workplace:
    """The workplace of the recording: with all the agent's variables, and one that it never reads."""
    folder = tmp_path / "server"
    folder.mkdir()
    url = f"http://127.0.0.1:{provider.port}/v1"
    return Workplace(
        folder,
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "MODEL": "gpt-4o", "TONE": "a pirate", "UNUSED": UNUSED},
    )


def carry(server: Workplace, laptop: Workplace, *files: str) -> str:
    """Copy the agent, without its `.env`, and the recording; return the recording's new path."""
    for name in files:
        laptop.write(name, (server.path / name).read_text(encoding="utf-8"))
    catalog = SpoolCatalog(server.path / ".spanreplay")
    try:
        path = laptop.path / "incident.replay"
        path.write_bytes(catalog.export(server.recordings()[-1].run_id))
    finally:
        catalog.close()
    return str(path)


def said(replayed: Replayed) -> str:
    """Everything that a replay prints or reports."""
    return f"{replayed.stdout}{replayed.stderr}{replayed.verdict}"


def stored(*places: Workplace) -> bytes:
    """Every byte below the data directories and in the copied recordings."""
    files = [file for place in places for file in (place.path / ".spanreplay").rglob("*") if file.is_file()]
    files += [file for place in places for file in place.path.glob("*.replay")]
    assert files
    return b"".join(file.read_bytes() for file in files)


def variables(server: Workplace) -> dict[str, str | None]:
    """The variables in the one recording."""
    found: dict[str, str | None] = server.recording().root.manifest["variables"]
    return found


PROGRAM: Final = "import subprocess\nprint(subprocess.check_output(['echo', 'first'], text=True))\n" + OPENAI
"""A program inherits the variables, also those that are given."""
LOOKING: Final = "import os\nfor number in range(700):\n    os.environ.get(f'A_SETTING_{number}')\n" + OPENAI
"""Some frameworks, such as Streamlit, look for hundreds of settings that don't exist."""


@pytest.mark.parametrize(
    "source",
    [OPENAI, PYDANTIC_AI, LANGGRAPH, LOOKING, PROGRAM],
    ids=["openai", "pydantic-ai", "langgraph", "many-settings", "program"],
)
@pytest.mark.sampled(2)
def test_s62_a_replay_needs_no_key(server: Workplace, laptop: Workplace, source: str) -> None:
    """In another folder, without any variable, an unchanged agent is identical; the verdict names the given ones."""
    server.write("agent.py", source)
    recorded = server.record("agent.py")
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"))
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    given = done.verdict["recorded_env"]["given"]
    assert {"MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "TONE"} <= set(given)
    assert f"env       from the recording, not set here: {', '.join(given)}" in done.stderr
    assert "environment" not in done.verdict
    assert KEY.encode() not in stored(server, laptop)
    assert KEY not in said(done)


def test_s62_only_variables_that_were_used_are_kept(server: Workplace) -> None:
    """A variable that isn't read is not in the recording, and a secret is there as its token."""
    server.environ["ACCOUNT"] = '{"kind": "service", "note": "Zk55-hiDden-9090-q"}'
    server.write("agent.py", OPENAI + "os.environ['ACCOUNT']\n")
    server.record("agent.py")
    found = variables(server)
    assert UNUSED.encode() not in stored(server)
    assert b"Zk55-hiDden" not in stored(server)
    assert str(found["ACCOUNT"]).startswith('{"kind": "service", "note": "rdx-')
    assert not {"UNUSED", "PATH", "HOME"} & set(found)
    assert (found["MODEL"], found["TONE"]) == ("gpt-4o", "a pirate")
    assert str(found["OPENAI_API_KEY"]).startswith("rdx-")
    assert found["OPENAI_ORG_ID"] is None


@pytest.mark.parametrize("is_same_key", [True, False], ids=["same-redaction-key", "another-redaction-key"])
def test_s62_what_is_set_here_wins_and_is_named(server: Workplace, laptop: Workplace, is_same_key: bool) -> None:
    """The agent gets this machine's values; differing ones are named, and so are hidden ones that can't be compared."""
    server.write("agent.py", "import os\nprint(os.environ['TONE'], len(os.environ['OPENAI_API_KEY']))\n" + OPENAI)
    server.record("agent.py")
    source = carry(server, laptop, "agent.py")
    key = {"SPANREPLAY_REDACT_KEY": str(server.path / ".spanreplay" / "redact.key")} if is_same_key else {}
    done = laptop.replay("agent.py", source=source, TONE="a judge", OPENAI_API_KEY="sk-proj-other-Key-123456", **key)
    assert done.stdout.startswith("a judge 24\n")
    assert done.status == 3
    if is_same_key:
        assert done.verdict["recorded_env"]["differing"] == ["OPENAI_API_KEY", "TONE"]
        assert done.verdict["environment"] == ["OPENAI_API_KEY", "TONE"]
        assert "differs from the recording: OPENAI_API_KEY, TONE" in done.stderr
    else:
        assert done.verdict["recorded_env"]["differing"] == ["TONE"]
        assert done.verdict["recorded_env"]["unknown"] == ["OPENAI_API_KEY"]
        assert "set here, cannot be compared (another redaction key): OPENAI_API_KEY" in done.stderr
    assert "'judge' is in the environment variable TONE" in done.stderr or not is_same_key
    assert "sk-proj-other" not in said(done)


def test_s62_a_variable_with_the_recorded_value_is_not_named(server: Workplace) -> None:
    """On the recording machine, the verdict doesn't mention the environment."""
    server.write("agent.py", OPENAI)
    server.record("agent.py")
    done = server.replay("agent.py")
    assert done.status == 0, done.stderr
    assert "recorded_env" not in done.verdict
    assert "  env " not in done.stderr


def test_s62_without_the_recorded_environment_the_lead_is_the_agents_error(
    server: Workplace, laptop: Workplace
) -> None:
    """With `--no-recorded-env` nothing is given; the agent's error comes first, and the missing variables are named."""
    server.write("agent.py", OPENAI)
    server.record("agent.py")
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"), options=["--no-recorded-env"])
    assert done.status == 3
    assert "diverged: the agent raised OpenAIError before its first call (agent.py:4" in done.stderr
    assert done.verdict["recorded_env"]["missing"] == ["MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "TONE"]
    assert "used when recorded, not set here: MODEL, OPENAI_API_KEY, OPENAI_BASE_URL, TONE" in done.stderr
    assert done.verdict["plan"]["recorded_env"] is False


# ── .env files ──────────────────────────────────────────────────────────────────────────────────────
def _move_into_file(server: Workplace, prefix: str = "OPENAI_") -> None:
    url, key = server.environ.pop("OPENAI_BASE_URL"), server.environ.pop("OPENAI_API_KEY")
    lines = [f"# of production\n{prefix}BASE_URL={url}", f'export {prefix}API_KEY="{key}"', f"DB_PASSWORD={PASSWORD}"]
    server.write(".env", "\n".join([*lines, f"{prefix}MODEL=gpt-4o", "TONE='a pirate'", ""]))


@pytest.mark.parametrize(
    ("source", "prefix"), [(DOTENV, "OPENAI_"), (SETTINGS, "DESK_")], ids=["python-dotenv", "pydantic-settings"]
)
def test_s62_a_missing_env_file_is_given(server: Workplace, laptop: Workplace, source: str, prefix: str) -> None:
    """An untracked `.env` file exists in a replay, with tokens for secrets, but isn't created in the folder."""
    _move_into_file(server, prefix)
    del server.environ["TONE"]
    server.write("agent.py", source)
    recorded = server.record("agent.py")
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"))
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    assert done.verdict["recorded_env"]["files"] == [".env"]
    assert ".env" in next(line for line in done.stderr.splitlines() if line.startswith("  env "))
    assert not (laptop.path / ".env").exists()
    for secret in (KEY, PASSWORD):
        assert secret.encode() not in stored(server, laptop)
        assert secret not in said(done)
    bare = laptop.replay("agent.py", source=str(laptop.path / "incident.replay"), options=["--no-recorded-env"])
    assert bare.status == 3
    assert ".env" in bare.verdict["recorded_env"]["missing"]


def test_s62_an_env_file_here_wins(server: Workplace, laptop: Workplace) -> None:
    """Values in this machine's `.env` file win over the recording, and the file is named if it differs."""
    server.write(".env", "TONE=a clerk\n")
    del server.environ["TONE"]
    server.write("agent.py", DOTENV)
    server.record("agent.py")
    source = carry(server, laptop, "agent.py")
    laptop.write(".env", "TONE=a clerk\nMODEL=gpt-5-mini\n")
    done = laptop.replay("agent.py", source=source)
    assert done.status == 3
    assert "gpt-5-mini" in str(done.verdict["divergences"][0])
    assert done.verdict["recorded_env"]["given"] == ["OPENAI_API_KEY", "OPENAI_BASE_URL"]
    assert done.verdict["recorded_env"]["differing"] == [".env"]


# ── how variables are read ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("source", [SETTINGS, COPY], ids=["pydantic-settings", "copy"])
def test_s62_names_are_found_where_the_environment_is_copied(server: Workplace, laptop: Workplace, source: str) -> None:
    """Copying the whole environment counts as using the names in the agent's code; no other name is kept."""
    for old, new in (("OPENAI_API_KEY", "DESK_API_KEY"), ("OPENAI_BASE_URL", "DESK_BASE_URL"), ("MODEL", "DESK_MODEL")):
        server.environ[new] = server.environ.pop(old)
    server.write("agent.py", source)
    recorded = server.record("agent.py")
    assert "UNUSED" not in variables(server)
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"))
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    assert UNUSED.encode() not in stored(server, laptop)


READS: Final = """
import os
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look():
    return os.environ.get("OF_THE_TOOL")

print(os.getenv("A"), "B" in os.environ, os.environ.get("C", "default"), os.environ.get("NONE", "d"))
os.environ["OWN"] = "set by the agent"
print(os.environ["OWN"], os.environ.pop("E"), os.environ.get("E"))
print(os.environ.setdefault("F", "another"), [os.environ[name] for name in os.environ if name.startswith("GG")])
print(look())
"""


def test_s62_each_way_to_read_a_variable_replays(server: Workplace, laptop: Workplace) -> None:
    """`getenv`, `in`, defaults, bytes, `pop`, `setdefault` and filtered names give the recorded values."""
    names = dict.fromkeys("ABCDEF", "then") | {"GG_ONE": "1", "GG_TWO": "2", "OF_THE_TOOL": "inside"}
    server.environ |= names
    server.write("agent.py", READS)
    recorded = server.record("agent.py")
    assert "then True then d" in recorded.stdout
    found = variables(server)
    assert {name: found[name] for name in ("A", "B", "F", "GG_ONE")} == {
        "A": "then",
        "B": "then",
        "F": "then",
        "GG_ONE": "1",
    }
    assert found["OWN"] is None
    assert not {"OF_THE_TOOL", "UNUSED", "GG"} & set(found)
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"))
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout


NESTED: Final = """
import os
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look():
    return len(dict(os.environ))

for name, value in os.environ.items():
    seen = [each for each in os.environ]
    look()
    os.system("true")
"""


def test_s62_a_loop_over_everything_keeps_nothing(server: Workplace) -> None:
    """A loop over the whole environment, even with calls and copies inside, uses no particular variable."""
    server.write("agent.py", NESTED)
    server.record("agent.py")
    assert [name for name, value in variables(server).items() if value is not None] == []
    assert UNUSED.encode() not in stored(server)


WORKER: Final = """
import multiprocessing, os
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look(text):
    return f"saw {text}"

def work(queue):
    queue.put(look(os.environ.get("DESK", "none") + os.environ.get("REMOVED", "none")))

if __name__ == "__main__":
    print(os.environ.pop("REMOVED"))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""


def test_s62_processes_of_the_run_see_the_same_variables(server: Workplace, laptop: Workplace) -> None:
    """A worker gets its parent's variables, even those that only the worker reads, but not those that were removed."""
    server.environ |= {"DESK": "refunds", "REMOVED": "gone"}
    server.write("agent.py", WORKER)
    recorded = server.record("agent.py")
    assert "saw refundsnone" in recorded.stdout
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"))
    assert done.status == 0, done.stderr
    assert done.stdout == recorded.stdout
    assert done.verdict["recorded_env"]["given"] == ["DESK", "REMOVED"]


# ── nothing of it leaves the machine ────────────────────────────────────────────────────────────────
def test_r9_a_live_call_sends_no_token_of_a_variable(server: Workplace, laptop: Workplace, provider: Provider) -> None:
    """A live model call never sends the token of a key, nor goes to a server known only from the recording."""
    server.write("agent.py", OPENAI)
    server.record("agent.py")
    source = carry(server, laptop, "agent.py")
    before = len(provider.requests)
    there = laptop.replay("agent.py", source=source, options=["--live", "llm"], OPENAI_API_KEY=KEY)
    assert there.status == 1
    assert "would go to the server of the recorded OPENAI_BASE_URL, which is not set here" in there.stderr
    url = server.environ["OPENAI_BASE_URL"]
    refused = laptop.replay("agent.py", source=source, options=["--live", "llm"], OPENAI_BASE_URL=url)
    assert refused.status == 1
    assert "would send the token of OPENAI_API_KEY, which is not set here; set it, or serve the call" in refused.stderr
    assert len(provider.requests) == before
    allowed = laptop.replay(
        "agent.py", source=source, options=["--live", "llm"], OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
    )
    assert allowed.verdict["counts"]["live"] == 1
    assert len(provider.requests) == before + 1


PROGRAMS: Final = f"""
import asyncio, os, subprocess
import spanreplay

SHOW = [{sys.executable!r}, "-S", "-c", "import os; print(os.environ.get('API_KEY'), os.environ.get('DESK'))"]

@spanreplay.boundary("tool", effect="write")
def deploy(how):
    if how == "os.system":
        return os.system("test -z \\"$API_KEY$DESK\\"")
    if how == "asyncio":
        async def run():
            process = await asyncio.create_subprocess_exec(*SHOW, stdout=subprocess.PIPE)
            return (await process.communicate())[0].decode()
        return asyncio.run(run())
    environ = {{**os.environ, "MORE": "1"}} if how == "env" else None
    return subprocess.run(SHOW, capture_output=True, text=True, env=environ).stdout

print(os.environ["API_KEY"] != "", os.environ["DESK"])
for how in ("inherited", "env", "asyncio", "os.system"):
    print(how, deploy(how))
"""


def test_r9_a_live_program_has_only_what_is_set_here(server: Workplace, laptop: Workplace) -> None:
    """A program started by a live call in a replay gets no recorded variables, however it is started."""
    server.environ |= {"API_KEY": KEY, "DESK": "refunds"}
    server.write("agent.py", PROGRAMS)
    recorded = server.record("agent.py")
    assert recorded.stdout.count(f"{KEY} refunds") == 3
    assert "os.system 0" not in recorded.stdout
    done = laptop.replay("agent.py", source=carry(server, laptop, "agent.py"), options=["--live", "tool:deploy"])
    assert done.stdout == "True refunds\ninherited None None\n\nenv None None\n\nasyncio None None\n\nos.system 0\n", (
        done.stderr
    )


# ── blocks and tests ────────────────────────────────────────────────────────────────────────────────
BLOCKS: Final = """
import os, sys
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look(text):
    return f"saw {len(text)}"

def work():
    look(os.environ["API_KEY"])
    return os.environ["DESK"]

if sys.argv[1] == "record":
    with spanreplay.record() as recorded:
        print(work())
    recorded.save("block.replay")
else:
    plan = spanreplay.Plan() if sys.argv[1] == "replay" else spanreplay.Plan().without_recorded_env()
    before = dict(os.environ)
    with spanreplay.replay("block.replay", plan=plan) as session:
        try:
            print(work())
        except KeyError as exc:
            print("missing", exc)
    print(session.verdict()["verdict"], session.verdict()["recorded_env"], dict(os.environ) == before)
"""


def _run(place: Workplace, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=place.path, env=place.environ, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_s62_a_block_gives_the_variables_and_takes_them_back(server: Workplace, laptop: Workplace) -> None:
    """`spanreplay.replay` works like the command, and restores the environment of its process."""
    server.environ |= {"API_KEY": KEY, "DESK": "refunds"}
    server.write("agent.py", BLOCKS)
    assert _run(server, "agent.py", "record") == "refunds\n"
    assert KEY.encode() not in stored(server)
    laptop.write("agent.py", BLOCKS)
    (laptop.path / "block.replay").write_bytes((server.path / "block.replay").read_bytes())
    assert _run(laptop, "agent.py", "replay") == "refunds\nidentical {'given': ['API_KEY', 'DESK']} True\n"
    bare = _run(laptop, "agent.py", "bare")
    assert "missing 'API_KEY'" in bare
    assert "diverged {'missing': ['API_KEY', 'DESK']} True" in bare


SUITE: Final = """
import os
import openai
import pytest

@pytest.mark.replay
def test_answer():
    client = openai.OpenAI()
    asked = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model=os.environ["MODEL"], messages=asked)
    assert answer.choices[0].message.content
"""


def test_s62_a_suite_needs_no_key(server: Workplace, laptop: Workplace) -> None:
    """A test recorded with a key passes on a machine without one."""
    server.write("test_agent.py", SUITE)
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *OURS, "test_agent.py")
    assert "1 passed" in _run(server, *suite, "--replay-mode=record")
    laptop.write("test_agent.py", SUITE)
    shutil.copytree(server.path, laptop.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".spanreplay"))
    assert "1 passed" in _run(laptop, *suite, "--replay-mode=replay")
    assert KEY.encode() not in b"".join(p.read_bytes() for p in laptop.path.rglob("*.replay"))
