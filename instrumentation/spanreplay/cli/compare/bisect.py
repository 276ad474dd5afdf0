"""`spanreplay bisect`: which commit changed what a recorded run does."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_recorded_agent, keep_key
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.compare.commits import Commit, Repository
from spanreplay.cli.replay import Source, open_source, run_agent, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import print_data, print_json, say
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.model.escape import escape
from spanreplay.report import suite

__all__ = ["bisect_command", "find_first"]

FOUND, UNDECIDED = 0, 4
SAME, OTHER, UNKNOWN = "same", "other", "unknown"
_KINDS: Final = {"identical": SAME, "incomplete": SAME, "diverged": OTHER}
_SHORT: Final = 10
_FILES_MAX: Final = 20
_PATHS_TIMEOUT_S: Final = 60


@click.command("bisect")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--good", required=True, metavar="COMMIT", help="The older commit, at which the run goes another way.")
@click.option("--bad", default="", metavar="COMMIT", help="The newer one; default: that of the recording, else HEAD.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one replay.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def bisect_command(
    ctx: click.Context,
    *,
    source: str,
    command: tuple[str, ...],
    good: str,
    bad: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Find the commit that changed what a run does, by replaying it at some commits between two.

    The run may be one of the bad code, which replays identical from some commit on, or one of the good code, which
    diverges from some commit on. Each commit's files are laid in a folder of their own: the working tree, its index and
    its branches stay as they are. Nothing is called, paid or written.

    \b
    spanreplay bisect 0192f3a4b5c67 --good v1.4 -- python agent.py

    Exit status: 0 found, 4 some commits could not be replayed and it is one of several; 1 error, 2 wrong usage.
    """
    with work_folder() as folder:
        found = open_source(source, folder)
        agent = find_recorded_agent(command, found.recording)
        check_not_isolated(agent)
        search = _Search(Replays(found, agent, Repository(Path.cwd()), folder, timeout_s))
        result = search.run(good, bad)
    if as_json:
        print_json(result)
    else:
        print_data(_describe(result))
    ctx.exit(FOUND if len(result["candidates"]) == 1 else UNDECIDED)


def find_first(count: int, judge: Callable[[int], str], wanted: str) -> tuple[int, int]:
    """Of `count` things in a row, the last of which is as `wanted`, the first that is; pure but for `judge`.

    `judge` says `SAME`, `OTHER` or `UNKNOWN`. Gives (before, at): it is one of before + 1 … at.
    """
    before, at, unknown = -1, count - 1, set[int]()
    while True:
        left = [each for each in range(before + 1, at) if each not in unknown]
        if not left:
            return before, at
        middle = (before + at + 1) // 2
        tried = min(left, key=lambda each: (abs(each - middle), each))
        kind = judge(tried)
        if kind == UNKNOWN:
            unknown.add(tried)
        elif kind == wanted:
            at = tried
        else:
            before = tried


# ── replays ─────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Replayed:
    """What the replay at one commit came to."""

    sha: str
    kind: str
    said: str


class Replays:
    """Replays of one run at commits."""

    def __init__(self, found: Source, agent: Agent, repository: Repository, folder: Path, timeout_s: float) -> None:
        self.recording = found.recording
        self.repository = repository
        self.done: dict[str, Replayed] = {}
        """Commit → what came of it, in the order in which they were tried."""
        self._found = found
        self._agent = agent
        self._folder = folder
        self._timeout_s = timeout_s
        self._here = Path.cwd().resolve()
        self._paths = _list_paths(agent)

    def judge(self, sha: str) -> str:
        """How the run goes at a commit."""
        if sha not in self.done:
            self.done[sha] = replayed = self._replay(sha)
            say(f"{sha[:_SHORT]}  {replayed.said}")
        return self.done[sha].kind

    def _replay(self, sha: str) -> Replayed:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        tree = folder / "tree"
        self.repository.lay_out(sha, tree)
        here = tree / self._here.relative_to(self.repository.root)
        if not here.is_dir():
            return Replayed(sha, UNKNOWN, f"the folder {here.relative_to(tree)} is not there")
        paths = [moved for path in self._paths if (moved := self._move(path, tree))]
        settings = {
            "SPANREPLAY_REPLAY_TIMEOUT": str(self._timeout_s),
            "SPANREPLAY_DIR": str(folder / "data"),  # nobody looks for these replays
            "OTEL_EXPORTER_OTLP_ENDPOINT": "",
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH", "")])]),
        }
        argv = tuple(self._move(word, tree) or word for word in self._agent.argv)
        agent = Agent(argv, self._agent.python, self._agent.python_flags)
        try:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 -- a device
                quiet = nowhere.fileno()
                verdict, status = run_agent(
                    agent, self._found, keep_key(settings), folder, stdout=quiet, stderr=quiet, cwd=here
                )
        except SpanreplayError as exc:
            return Replayed(sha, UNKNOWN, str(exc))
        verdict = settle(verdict, status, self.recording.completeness())
        said = " ".join(suite.describe({**verdict, "run_id": ""}).split())
        return Replayed(sha, _KINDS.get(verdict["verdict"], UNKNOWN), said)

    def _move(self, path: str, tree: Path) -> str:
        """The same file or folder among those of a commit; '' if it is none of the repository's."""
        try:
            inner = Path(path).resolve().relative_to(self.repository.root) if Path(path).is_absolute() else None
        except (ValueError, OSError):
            return ""
        return str(tree / inner) if inner is not None and (tree / inner).exists() else ""


def _list_paths(agent: Agent) -> list[str]:
    """The folders that the agent's Python looks for modules in, as one that is installed in place is found."""
    if not agent.python:
        return []
    ask = "import sys; print('\\n'.join(sys.path))"
    try:
        done = subprocess.run(
            [agent.python, "-c", ask], capture_output=True, text=True, timeout=_PATHS_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line]


# ── the search ──────────────────────────────────────────────────────────────────────────────────────
class _Search:
    """The commit from which on a run goes as it does at the newer of two."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._repository = replays.repository

    def run(self, good_name: str, bad_name: str) -> dict[str, Any]:
        """What was found, as JSON. Raises: ConfigError where both ends are alike."""
        good, recorded = self._repository.find(good_name), self._find_recorded()
        bad = self._repository.find(bad_name) if bad_name else self._choose_bad(good, recorded)
        commits = self._repository.list_between(good, bad)
        ends = {sha: SAME if sha == recorded else self._judge_end(sha) for sha in (good, bad)}
        if ends[good] == ends[bad]:
            how = "as recorded" if ends[bad] == SAME else "another way"
            raise ConfigError(
                f"the run goes {how} at {good[:_SHORT]} and at {bad[:_SHORT]}: no commit between them can be named",
                hint="--good is a commit at which it goes another way than at --bad",
            )
        before, at = find_first(len(commits), lambda number: self._replays.judge(commits[number]), ends[bad])
        for sha, is_needed in ((bad, at == len(commits) - 1), (good, before < 0)):
            if is_needed and self._replays.judge(sha) != ends[sha]:
                raise ConfigError(
                    f"the run is recorded at {sha[:_SHORT]} and does not replay there: {self._replays.done[sha].said}",
                    hint="a run of code that was not committed, or of other packages, can't be looked for by commits",
                )
        older = good if before < 0 else commits[before]
        return self._to_json(older, commits[before + 1 : at + 1], ends[bad])

    def _find_recorded(self) -> str:
        sha = str(self._replays.recording.root.env.get("git_sha", ""))
        return sha if self._repository.knows(sha) else ""

    def _choose_bad(self, good: str, recorded: str) -> str:
        if recorded and recorded != good and self._repository.is_ancestor(good, recorded):
            return recorded
        return self._repository.find("HEAD")

    def _judge_end(self, sha: str) -> str:
        kind = self._replays.judge(sha)
        if kind == UNKNOWN:
            raise ConfigError(f"the run can't be replayed at {sha[:_SHORT]}: {self._replays.done[sha].said}")
        return kind

    def _to_json(self, older: str, candidates: Sequence[str], kind: str) -> dict[str, Any]:
        found = self._repository.describe(candidates[0]) if len(candidates) == 1 else None
        return {
            "run_id": self._replays.recording.run_id,
            "from_then_on": "identical" if kind == SAME else "diverged",
            "differs": self._replays.done[candidates[-1] if kind == OTHER else older].said,
            "candidates": list(candidates),
            "found": None if found is None else {**asdict(found), "files": self._repository.list_changed(found.sha)},
            "replays": [{"sha": each.sha, "verdict": each.said} for each in self._replays.done.values()],
        }


def _describe(result: dict[str, Any]) -> str:
    how = "replays identical" if result["from_then_on"] == "identical" else "diverges"
    if result["found"] is None:
        names = " ".join(sha[:_SHORT] for sha in result["candidates"])
        return f"one of these {len(result['candidates'])} commits, some of which can't be replayed: {names}"
    files = result["found"].pop("files")
    commit = Commit(**result["found"])
    more = [f"  and {len(files) - _FILES_MAX:,} more"] if len(files) > _FILES_MAX else []
    lines = [
        f"from commit {commit.sha[:_SHORT]} on the run {how}",
        f"  {escape(commit.subject)}",
        f"  {escape(commit.author)}, {commit.date}",
        f"  {'now' if result['from_then_on'] == 'diverged' else 'before'}: {escape(result['differs'])}",
        *(f"  {escape(name)}" for name in files[:_FILES_MAX]),
        *more,
        f"  {len(result['replays'])} replays",
    ]
    return "\n".join(lines)
