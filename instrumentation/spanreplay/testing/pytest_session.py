"""The replay or recording of one marked test; imported when the first marked test is set up."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from spanreplay.activate import blocks
from spanreplay.model.errors import ConfigError, SpanreplayError

if TYPE_CHECKING:
    from spanreplay.activate.blocks import Plan
    from spanreplay.model.call import Recording
    from spanreplay.redact import RunRedactor
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.runtime.process.surroundings import Surroundings

_WRONG_MAX: Final = 10
_NO_VERDICT: Final = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, unittest.SkipTest)


class ReplaySession:
    """The replay of a marked test, for the test to inspect; while recording, nothing is served and nothing differs."""

    def __init__(
        self,
        *,
        node_id: str,
        mode: str,
        source: str,
        plan: Plan,
        is_strict: bool,
        report_path: Path | None,
        warn: Callable[[Warning], None],
        has_sandbox: bool,
        surroundings: Callable[[], Surroundings],
        is_canary: bool = False,
        judge: Callable[[str], str] | None = None,
    ) -> None:
        self.mode = mode
        """`replay`, `record` or `off`."""
        self.source = source
        """The file or run id that is replayed, or the file that is recorded."""
        self.plan = plan
        self._node_id = node_id
        self._is_strict = is_strict
        self._report_path = report_path
        self._warn = warn
        self._has_sandbox = has_sandbox
        self._surroundings = surroundings
        self._is_canary, self._judge = is_canary, judge
        self._recording: blocks.RecordBlock | None = None
        self._replay: blocks.ReplayBlock | None = None
        self.is_outdated = False
        """Whether the recording did not fit what the test did."""

    @property
    def served(self) -> int:
        """Number of calls answered from the recording so far."""
        return 0 if self._replay is None else self._replay.served

    @property
    def divergences(self) -> Sequence[Divergence]:
        """Divergences so far; missing calls are only in the verdict."""
        return () if self._replay is None else self._replay.divergences

    def verdict(self) -> dict[str, Any]:
        """The current verdict, schema divergence/1. Raises: ConfigError if the test is not being replayed."""
        if self._replay is None:
            raise ConfigError("there is no verdict: the test is not being replayed", hint="ask in mode replay only")
        return self._replay.verdict()

    def recording(self) -> Recording:
        """The calls of this test so far, recorded or replayed, for the assertions of `spanreplay.testing`.

        Skips the test if it is neither recorded nor replayed. Raises: DamagedRecording, ConfigError.
        """
        block = self._recording or self._replay
        if block is None:
            pytest.skip("nothing is known about the test's calls: it is not being recorded or replayed")
        return block.recording()

    @property
    def redactor(self) -> RunRedactor | None:
        """Replaces secrets as the test's calls do."""
        block = self._recording or self._replay
        return None if block is None else block.redactor

    # ── the plug-in's side ──────────────────────────────────────────────────────────────────────────
    def start(self) -> None:
        """Start recording or replaying. Raises: pytest.fail.Exception if the recording is missing or can't be used."""
        try:
            if self.mode == "record":
                self._recording = blocks.record(name=self._node_id)
                self._recording.surroundings = self._surroundings()
                self._recording.__enter__()
                return
            if Path(self.source).suffix in (".replay", ".jsonl") and not Path(self.source).is_file():
                raise ConfigError(f"no recording {self.source}", hint=self._how_to_record())
            if self._is_canary:
                from spanreplay.testing.canary import LIVE_KINDS

                self.plan = self.plan.live(*LIVE_KINDS)
            self._replay = blocks.replay(self.source, plan=self.plan, sandbox=self._has_sandbox)
            self._replay.surroundings = self._surroundings()
            self._replay.__enter__()
        except SpanreplayError as exc:
            self._recording = self._replay = None
            _fail(f"{exc}\nhint: {exc.hint}" if exc.hint else str(exc))

    def finish(self, exc: BaseException | None) -> None:
        """Stop, and judge the replay; returns if the test's own outcome stands. Raises: pytest.fail.Exception."""
        if self._recording is not None:
            self._end_recording(self._recording, exc)
        elif self._replay is not None:
            self._end_replay(self._replay, exc)

    def _end_recording(self, block: blocks.RecordBlock, exc: BaseException | None) -> None:
        block.__exit__(None if exc is None else type(exc), exc, None)
        if exc is not None:
            return
        try:
            block.save(self.source)
        except SpanreplayError as failure:
            _fail(f"{failure}\nhint: {failure.hint}" if failure.hint else str(failure))

    def _end_replay(self, block: blocks.ReplayBlock, exc: BaseException | None) -> None:
        block.__exit__(None if exc is None else type(exc), exc, None)
        verdict = block.verdict()
        now = block.recording() if self._is_canary else None
        block.forget_files()
        self._write_report(verdict)
        if isinstance(exc, (*_NO_VERDICT, KeyboardInterrupt)):
            return
        if now is not None and exc is None and verdict["divergences"]:
            self._examine(verdict, now)
            return
        word = verdict["verdict"]
        self.is_outdated = word != "identical"
        if word == "incomplete" and exc is None and not self._is_strict:
            reasons = "; ".join(verdict["reasons"][:3])
            self._warn(pytest.PytestWarning(f"the recording is incomplete, so not all of it was compared: {reasons}"))
        elif word not in ("identical", "incomplete") and not _is_consequence(verdict, exc):
            _fail(self._describe(verdict, exc), exc)
        elif exc is None and self._is_strict and (word == "incomplete" or self._has_unwanted_live(verdict)):
            why = "the recording is incomplete" if word == "incomplete" else "calls ran live"
            _fail(f"--replay-strict: {why}\n{self._describe(verdict, exc)}")

    def _has_unwanted_live(self, verdict: dict[str, Any]) -> bool:
        """Whether calls ran live in a test that is no canary."""
        return bool(verdict["counts"]["live"]) and not self._is_canary

    def _examine(self, verdict: dict[str, Any], now: Recording) -> None:
        """Judge the answers of a canary's models. Raises: pytest.fail.Exception."""
        from spanreplay.recording.source import load_source
        from spanreplay.testing.canary import examine

        try:
            found = examine(verdict, load_source(self.source), now, self._judge)
        except SpanreplayError as exc:
            _fail(f"{exc}\nhint: {exc.hint}" if exc.hint else str(exc))
        if found.wrong:
            lines = "\n".join(f"  {each}" for each in found.wrong[:_WRONG_MAX])
            _fail(f"canary: the models behave differently from the recording\n{lines}\n{self._describe(verdict, None)}")
        if found.accepted:
            self._warn(pytest.PytestWarning(f"canary: {found.accepted} answers differ, and the judge accepts them"))

    def _describe(self, verdict: dict[str, Any], exc: BaseException | None) -> str:
        import json

        from spanreplay.model.errors import ReplayMiss
        from spanreplay.report.json import parse
        from spanreplay.report.text import render

        text = render(parse(json.dumps(verdict))).plain
        if exc is not None and not isinstance(exc, ReplayMiss):
            text += f"\n  the test itself raised {type(exc).__name__}: {str(exc)[:1000]}"
        if Path(self.source).suffix == ".replay":
            text += f"\n  if this change is intended, re-record: {self._how_to_record()}"
        return text

    def _how_to_record(self) -> str:
        return f"pytest --replay-mode=record {self._node_id!r}"

    def _write_report(self, verdict: dict[str, Any]) -> None:
        if self._report_path is None:
            return
        import json

        from spanreplay.report.json import dump, parse

        try:
            self._report_path.parent.mkdir(parents=True, exist_ok=True)
            self._report_path.write_text(dump(parse(json.dumps(verdict))), encoding="utf-8")
        except OSError as exc:
            self._warn(pytest.PytestWarning(f"the verdict is not written: {exc}"))


def _is_consequence(verdict: dict[str, Any], exc: BaseException | None) -> bool:
    """Whether calls are missing only because the test failed before it made them."""
    return (
        isinstance(exc, (Exception, pytest.fail.Exception))
        and verdict["verdict"] == "diverged"
        and all(d["kind"] == "missing_call" for d in verdict["divergences"])
    )


def _fail(message: str, cause: BaseException | None = None) -> NoReturn:
    failure = pytest.fail.Exception(message, pytrace=False)
    raise failure from (cause if isinstance(cause, Exception) else None)  # a ReplayMiss only repeats the report
