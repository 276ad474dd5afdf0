"""Third-party agents from PyPI, run as their users run them; docs/frameworks/agents.md lists them all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.agents import AGENTS as FOLDER
from support.agents import ENVIRONMENTS, ROOT
from support.provider import Provider
from support.replaying import Workplace

MODEL: Final = "gpt-4o-mini"
NOTE_TOOL: Final = '''
import pathlib
import subprocess

def write_note(name: str, text: str) -> str:
    """Write a note."""
    pathlib.Path(name).write_text(text)
    return subprocess.run(["sh", "-c", f"date +%N >> {name}; cat {name}"], capture_output=True, text=True).stdout
'''
CODE_STEP: Final = """Thought: I write it.
<code>
import pathlib, time
pathlib.Path("made.txt").write_text(str(time.time()))
print(pathlib.Path("made.txt").read_text())
</code>"""
LAST_STEP: Final = 'Thought: done.\n<code>\nfinal_answer("written")\n</code>'
CREW: Final = "import sys\nfrom scouts.main import run\nif __name__ == '__main__':\n    sys.exit(run())\n"


def _say(text: str) -> str:
    return "say " + json.dumps({"text": text})


def _use(tool: str, **arguments: object) -> str:
    return f"use tool {tool} with {json.dumps(arguments)}"


def _scaffold(folder: Path, python: Path) -> None:
    """Run `crewai create crew` and add a script that starts it: `crewai run` would first install it with uv."""
    subprocess.run(
        [str(python.parent / "crewai"), "create", "crew", "scouts", "--classic", "--skip-provider"],
        cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=100,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "CREWAI_DISABLE_TELEMETRY": "true", "CI": "true"},
    )  # fmt: skip
    (folder / "scouts" / "run_crew.py").write_text(CREW, encoding="utf-8")


def _commit_first(folder: Path, python: Path) -> None:
    """Create a repository with one commit, where the agent commits its changes."""
    (folder / "readme.md").write_text("A project.\n", encoding="utf-8")
    (folder / ".gitignore").write_text(".aider*\n.spanreplay\nverdict.json\n", encoding="utf-8")
    user = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("init", "-q"), ("add", "."), (*user, "commit", "-qm", "one")):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=100)
    for name, value in (("user.name", "test"), ("user.email", "test@example.org")):
        subprocess.run(["git", "config", name, value], cwd=folder, check=True, timeout=100)


def _install_functions(folder: Path, python: Path) -> None:
    """Put yaicli's own functions into its user's home."""
    home = folder.with_name("home")
    subprocess.run(
        [str(python.parent / "ai"), "--install-functions"], check=True, capture_output=True, timeout=100,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "YAI_CHAT_HISTORY_DIR": str(home / "chats")},
    )  # fmt: skip


NANOBOT: Final = {
    "agents": {"defaults": {"model": MODEL, "provider": "custom"}},
    "providers": {"custom": {"apiKey": "none", "apiBase": "{url}/v1"}},
}
TIMED: Final = "date +%N > made.txt; cat made.txt"


@dataclass(frozen=True)
class Published:
    """One agent: how its users start it, and the files that its run leaves behind."""

    environment: str
    command: tuple[str, ...]
    """The arguments after `python`; `{bin}` is the folder of its console scripts, `{url}` the provider's address and
    `{home}` its user's home."""
    effects: frozenset[str] = frozenset()
    """Files that the run has written to its folder."""
    environ: Mapping[str, str] = field(default_factory=dict)
    script: tuple[str, ...] = ()
    """The model's answers, for agents that write their own prompts."""
    edit: tuple[str, str] = ("", "")
    """A change of its command that reaches its model."""
    prepare: Callable[[Path, Path], None] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Files in its user's home."""


AGENTS: Final = {
    "llm": Published(
        "llm",
        ("{bin}/llm", "-m", MODEL, "--functions", NOTE_TOOL, _use("write_note", name="a.txt", text="mine")),
        frozenset({"a.txt"}),
        edit=('"mine"', '"other"'),
    ),
    "shell-gpt": Published(
        "shell-gpt",
        ("{bin}/sgpt", "--no-md", "--no-cache", "--chat", "one", _say("as you like")),
        environ={"API_BASE_URL": "{url}/v1", "DEFAULT_MODEL": MODEL, "OPENAI_USE_FUNCTIONS": "false"},
        edit=("as you", "as we"),
    ),
    "clai": Published(
        "clai",
        ("{bin}/clai", "-m", f"openai-chat:{MODEL}", "--no-stream", "Is anybody there?"),
        edit=("anybody", "nobody"),
    ),
    "smolagents": Published(
        "smolagents-cli",
        (
            *("{bin}/smolagent", f"step by step {_say(CODE_STEP)} then {_say(LAST_STEP)}"),
            *("--model-type", "OpenAIModel", "--model-id", MODEL, "--imports", "pathlib", "time"),
            *("--tools", "visit_webpage", "--api-base", "{url}/v1", "--api-key", "none"),
        ),
        frozenset({"made.txt"}),
        edit=("I write it", "I wrote it"),
    ),
    "pydantic-ai": Published(
        "pydantic-ai-examples",
        ("-m", "pydantic_ai_examples.bank_support"),
        script=(
            _use("customer_balance"),
            _use("final_result", support_advice="John, it is $123.45", block_card=False, risk=1),
            _use("final_result", support_advice="blocked", block_card=True, risk=8),
        ),
    ),
    "aider": Published(
        "aider",
        (
            *("{bin}/aider", "--model", f"openai/{MODEL}", "--yes-always", "--no-git", "--no-check-update"),
            *("--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--edit-format", "whole"),
            *("--auto-test", "--test-cmd", "date +%N > tested.txt"),
            *("--message", _say("hello.py\n```\nprint('made by aider')\n```\n")),
        ),
        frozenset({"hello.py", "tested.txt"}),
        edit=("by aider", "by you"),
    ),
    "aider with git": Published(
        "aider",
        (
            *("{bin}/aider", "--model", f"openai/{MODEL}", "--yes-always", "--no-check-update"),
            *("--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--edit-format", "whole"),
            *("--message", _say("hello.py\n```\nprint('made by aider')\n```\n")),
        ),
        frozenset({"hello.py"}),
        edit=("by aider", "by you"),
        prepare=_commit_first,
    ),
    "crewai": Published(
        "crewai",
        ("scouts/run_crew.py",),
        frozenset({"report.md"}),
        {
            "PYTHONPATH": "scouts/src",
            "CREWAI_DISABLE_TELEMETRY": "true",
            "OPENAI_MODEL_NAME": MODEL,
            "OPENAI_API_BASE": "{url}/v1",
        },
        prepare=_scaffold,
    ),
    "yaicli": Published(
        "yaicli",
        (
            "{bin}/ai",
            f"Build it: {_use('execute_shell_command', shell_command=TIMED)} then "
            f"{_use('fs_write_file', file_path='kept.txt', content='by yaicli')} then "
            f"{_use('fetch_webpage', url='{url}/health')}",
        ),
        frozenset({"made.txt", "kept.txt"}),
        {
            "YAI_BASE_URL": "{url}/v1",
            "YAI_API_KEY": "none",
            "YAI_MODEL": MODEL,
            "YAI_TOOL_CONFIRM": "false",
            "YAI_CHAT_HISTORY_DIR": "{home}/chats",
        },
        edit=("Build", "Make"),
        prepare=_install_functions,
    ),
    "nanobot": Published(
        "nanobot",
        (
            *("{bin}/nanobot", "agent", "--config", "{home}/config.json", "--workspace", ".", "--message"),
            f"Build it: {_use('exec', command=TIMED)} then "
            f"{_use('write_file', path='kept.py', content='print(1)')} then "
            f"{_use('edit_file', path='kept.py', old_text='1', new_text='2')}",
        ),
        frozenset({"made.txt", "kept.py", ".git/index"}),
        edit=("Build", "Make"),
        settings={"config.json": json.dumps(NANOBOT)},
    ),
    "chatblade": Published(
        "chatblade",
        ("{bin}/chatblade", "--openai-base-url", "{url}/v1", "-c", MODEL, "-S", "one", "-s", "-r", "Tell", "me"),
        edit=("Tell", "Ask"),
    ),
}


class Place:
    """An agent in its own folder and home."""

    def __init__(self, agent: Published, provider: Provider, folder: Path) -> None:
        self.agent, self.url = agent, provider.url
        self.python = ENVIRONMENTS[agent.environment]
        self.project, self.home = folder / "project", folder / "home"
        self.project.mkdir()
        self.home.mkdir()
        for name, text in agent.settings.items():
            (self.home / name).write_text(self._fill(text), encoding="utf-8")
        if agent.prepare is not None:
            agent.prepare(self.project, self.python)
        own = {name: self._fill(value) for name, value in agent.environ.items()}
        environ = {**provider.environ(), "HOME": str(self.home), "COLUMNS": "200", **own}
        self.workplace = Workplace(self.project, {**environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, self.python)

    def _fill(self, text: str) -> str:
        known = {"{bin}": str(self.python.parent), "{url}": self.url, "{home}": str(self.home)}
        for name, value in known.items():
            text = text.replace(name, value)
        return text

    def command(self, edit: tuple[str, str] = ("", "")) -> list[str]:
        """The command that its user types."""
        before, after = edit
        return [self._fill(each.replace(before, after) if before else each) for each in self.agent.command]

    def seen(self) -> dict[str, tuple[bytes, int]]:
        """Each of the user's files with its content and modification time."""
        files = (each for folder in (self.project, self.home) for each in sorted(folder.rglob("*")) if each.is_file())
        kept = (each for each in files if ".spanreplay" not in each.parts and each.name != "verdict.json")
        return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in kept}

    def recording(self) -> Recording:
        """The agent's own run: Python programs that it starts may have runs of their own."""
        return self.workplace.recordings()[0]


@pytest.mark.parametrize("name", AGENTS)
def test_p10_a_published_agent_replays_and_changes_nothing(name: str, provider: Provider, tmp_path: Path) -> None:
    """With the provider stopped, a run replays identically and touches no file; a changed prompt is a changed call."""
    agent = AGENTS[name]
    if not ENVIRONMENTS[agent.environment].exists():
        pytest.skip(f"no {name} here: tools/agents.sh makes .venvs/{agent.environment}")
    place = Place(agent, provider, tmp_path)
    provider.script.extend(agent.script)
    recorded = place.workplace.record(*place.command())
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert sum(call.kind == "llm" for call in recording.calls) > 0
    assert {each for each in agent.effects if (place.project / each).exists()} == agent.effects
    provider.stop()
    for each in agent.effects:
        (place.project / each).write_text("the user's own", encoding="utf-8")
    before = place.seen()
    replayed = place.workplace.replay(*place.command(), source=recording.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert place.seen() == before
    if agent.edit[0]:
        changed = place.workplace.replay(*place.command(agent.edit), source=recording.run_id)
        assert (changed.verdict["verdict"], changed.status) == ("diverged", 3)
        assert changed.causes()[0][1].startswith("llm:openai."), changed.stderr
        assert place.seen() == before


PAGE: Final = ROOT / "docs" / "frameworks" / "agents.md"


def _read_pins(environment: str) -> list[str]:
    """Return the distributions that an environment is made of, each with its version."""
    lines = (FOLDER / "requirements" / f"{environment}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _list_agents() -> list[str]:
    """Return each agent's distribution with its version; mini-swe-agent is run in `test_installed_agents.py`."""
    mini = next(pin for pin in _read_pins("google-adk") if pin.startswith("mini-swe-agent"))
    return [*(_read_pins(agent.environment)[0] for agent in AGENTS.values()), mini]


def test_p10_ten_different_agents_are_installed_and_run() -> None:
    """The agents that these tests run come from at least ten distributions, each with its version."""
    pins = [pin.split("==") for pin in _list_agents()]
    assert all(version for _, version in pins)
    assert len({distribution.partition("[")[0] for distribution, _ in pins}) >= 10


def test_p10_the_page_names_every_agent_with_its_version() -> None:
    """The page has the version that the tests install, and a reason for each unavailable or unreplayable agent."""
    listed, _, cannot = PAGE.read_text(encoding="utf-8").partition("## What cannot be had, or cannot be replayed")
    for pin in (_read_pins("mcp-servers")[0], *_list_agents()):
        distribution, version = pin.split("==")
        assert f"[{distribution.partition('[')[0]}](" in listed
        assert f"| {version} |" in listed
    reasons = [line.split(" | ")[1] for line in cannot.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(reasons) > 1
    assert all(reasons)
