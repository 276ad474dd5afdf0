"""`spanreplay bisect`: find the commit that changed the behaviour of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import check_not_isolated, find_recorded_agent
from spanreplay.cli.compare.at_commits import SHORT, Replays, describe_shortly, timeout_option
from spanreplay.cli.compare.commits import Commit, Repository
from spanreplay.cli.replay import open_source, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import print_data, print_json, say
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.model.escape import escape

__all__ = ["bisect_command", "find_first"]

FOUND, UNDECIDED = 0, 4
SAME, OTHER, UNKNOWN = "same", "other", "unknown"
_KINDS: Final = {"identical": SAME, "incomplete": SAME, "diverged": OTHER}
_FILES_MAX: Final = 20


@click.command("bisect")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--good", required=True, metavar="COMMIT", help="The older commit, at which the run behaves differently.")
@click.option("--bad", default="", metavar="COMMIT", help="The newer commit; default: the recording's, else HEAD.")
@timeout_option
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
    """Find the commit that changed what a run does, by replaying it at commits between two.

    The run may be from the bad code, so that it replays identically since some commit, or from the good code, so that
    it diverges since some commit. The files of each commit are written to a separate folder: the working tree, its
    index and its branches stay as they are. No live call is made.

    \b
    spanreplay bisect 0192f3a4b5c67 --good v1.4 -- python agent.py

    Exit status: 0 found, 4 narrowed down to several because some commits could not be replayed; 1 error, 2 wrong usage.
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
    """Find the first of `count` items that is `wanted`, given that the last one is; pure except for `judge`.

    `judge` returns `SAME`, `OTHER` or `UNKNOWN`. Returns (before, at): the item is one of before + 1 … at.
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
class _Replayed:
    """The result of the replay at one commit."""

    sha: str
    kind: str
    said: str


class _Judge:
    """Judges commits by replaying the run; each commit is replayed once."""

    def __init__(self, replays: Replays) -> None:
        self.done: dict[str, _Replayed] = {}
        """Commit → its result, in the order of the replays."""
        self._replays = replays

    def judge(self, sha: str) -> str:
        """`SAME`, `OTHER` or `UNKNOWN`."""
        if sha not in self.done:
            self.done[sha] = replayed = self._replay(sha)
            say(f"{sha[:SHORT]}  {replayed.said}")
        return self.done[sha].kind

    def _replay(self, sha: str) -> _Replayed:
        try:
            verdict = self._replays.replay(sha)
        except SpanreplayError as exc:
            return _Replayed(sha, UNKNOWN, str(exc))
        return _Replayed(sha, _KINDS.get(verdict["verdict"], UNKNOWN), describe_shortly(verdict))


# ── the search ──────────────────────────────────────────────────────────────────────────────────────
class _Search:
    """Finds the commit since which the run behaves as it does at the newer of two commits."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._judge = _Judge(replays)
        self._repository = replays.repository

    def run(self, good_name: str, bad_name: str) -> dict[str, Any]:
        """Search, and return the result as JSON. Raises: ConfigError if the run behaves the same at both ends."""
        good, recorded = self._repository.find(good_name), self._find_recorded()
        bad = self._repository.find(bad_name) if bad_name else self._choose_bad(good, recorded)
        commits = self._repository.list_between(good, bad)
        ends = {sha: SAME if sha == recorded else self._judge_end(sha) for sha in (good, bad)}
        if ends[good] == ends[bad]:
            how = "as recorded" if ends[bad] == SAME else "differently"
            raise ConfigError(
                f"the run behaves {how} at {good[:SHORT]} and at {bad[:SHORT]}: no commit between them changed it",
                hint="choose a --good commit at which the run behaves differently than at --bad",
            )
        before, at = find_first(len(commits), lambda number: self._judge.judge(commits[number]), ends[bad])
        for sha, is_needed in ((bad, at == len(commits) - 1), (good, before < 0)):
            if is_needed and self._judge.judge(sha) != ends[sha]:
                raise ConfigError(
                    f"the run was recorded at {sha[:SHORT]} but does not replay there: {self._judge.done[sha].said}",
                    hint="changes in uncommitted code or in packages can't be found by commit",
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
        kind = self._judge.judge(sha)
        if kind == UNKNOWN:
            raise ConfigError(f"the run can't be replayed at {sha[:SHORT]}: {self._judge.done[sha].said}")
        return kind

    def _to_json(self, older: str, candidates: Sequence[str], kind: str) -> dict[str, Any]:
        found = self._repository.describe(candidates[0]) if len(candidates) == 1 else None
        return {
            "run_id": self._replays.recording.run_id,
            "from_then_on": "identical" if kind == SAME else "diverged",
            "differs": self._judge.done[candidates[-1] if kind == OTHER else older].said,
            "candidates": list(candidates),
            "found": None if found is None else {**asdict(found), "files": self._repository.list_changed(found.sha)},
            "replays": [{"sha": each.sha, "verdict": each.said} for each in self._judge.done.values()],
        }


def _describe(result: dict[str, Any]) -> str:
    how = "replays identically" if result["from_then_on"] == "identical" else "diverges"
    if result["found"] is None:
        names = " ".join(sha[:SHORT] for sha in result["candidates"])
        return f"one of these {len(result['candidates'])} commits, some of which can't be replayed: {names}"
    files = result["found"].pop("files")
    commit = Commit(**result["found"])
    more = [f"  and {len(files) - _FILES_MAX:,} more"] if len(files) > _FILES_MAX else []
    lines = [
        f"since commit {commit.sha[:SHORT]} the run {how}",
        f"  {escape(commit.subject)}",
        f"  {escape(commit.author)}, {commit.date}",
        f"  {'now' if result['from_then_on'] == 'diverged' else 'before'}: {escape(result['differs'])}",
        *(f"  {escape(name)}" for name in files[:_FILES_MAX]),
        *more,
        f"  {len(result['replays'])} replays",
    ]
    return "\n".join(lines)
