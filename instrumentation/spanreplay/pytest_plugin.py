"""pytest plug-in: a test marked `replay` runs against its recording, without network, and fails where it differs.

    @pytest.mark.replay                       # recordings/<module>/<test>.replay, beside the test
    @pytest.mark.replay("incident.replay", live=["tool:get_*"])

pytest loads this module in every run: it imports nothing but pytest until a marked test is set up.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from spanreplay._pytest_session import ReplaySession
    from spanreplay.api import Plan

MODES: Final = ("replay", "record", "off")
_NAME_CHARACTERS_MAX: Final = 120
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.=+-]+")
_KEYWORDS: Final = frozenset({"live", "stub", "on_change"})
_session_key: Final = pytest.StashKey["ReplaySession"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --replay-mode, --replay-strict and --replay-report."""
    group = parser.getgroup("spanreplay", "replay of recorded agents (spanreplay)")
    group.addoption(
        "--replay-mode",
        choices=MODES,
        default="replay",
        help="marked tests: replay their recordings (default), record them anew, or off: run as if unmarked",
    )
    group.addoption(
        "--replay-strict",
        action="store_true",
        help="fail also where a recording is incomplete or a call ran live",
    )
    group.addoption("--replay-report", metavar="DIR", help="write each verdict as JSON into this directory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and refuse to record in CI. Raises: pytest.UsageError."""
    config.addinivalue_line(
        "markers",
        "replay(source=None, *, live=(), stub=(), on_change='stop'): run against a recording: a file, a run id, "
        "or by default recordings/<module>/<test>.replay beside the test",
    )
    if _mode(config) == "record" and os.environ.get("CI", "").strip().lower() in ("true", "1", "yes"):
        raise pytest.UsageError("--replay-mode=record is refused where CI is set: record at home and commit the files")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say so where marked tests are not replayed."""
    mode = _mode(config)
    return None if mode == "replay" else f"spanreplay: --replay-mode={mode}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have a marked test use the fixture that sets its replay up."""
    fixtures = getattr(item, "fixturenames", None)
    if isinstance(fixtures, list) and "replay_session" not in fixtures and _is_on(item):
        fixtures.append("replay_session")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run the body of a marked test in its block; the verdict decides."""
    session = item.stash.get(_session_key, None)
    if session is None or not _is_on(item):
        return (yield)
    session.start()
    try:
        result = yield
    except BaseException as exc:
        session.finish(exc)
        raise
    session.finish(None)
    return result


@pytest.fixture
def replay_plan(request: pytest.FixtureRequest) -> Plan:
    """The plan that the test's mark asks for; override it to say which calls run live."""
    from spanreplay.errors import ConfigError
    from spanreplay.replay.plan import build_plan

    mark = request.node.get_closest_marker("replay")
    options = {} if mark is None else dict(mark.kwargs)
    try:
        return build_plan(
            stub=_patterns(options.get("stub", ())),
            live=_patterns(options.get("live", ())),
            on_change=str(options.get("on_change", "stop")),
        )
    except ConfigError as exc:
        pytest.fail(f"the mark replay: {exc}", pytrace=False)


@pytest.fixture
def replay_session(request: pytest.FixtureRequest, replay_plan: Plan) -> ReplaySession:
    """The replay of this test: `.served`, `.divergences`, `.verdict()`, `.mode`; it begins with the test's body."""
    from spanreplay._pytest_session import ReplaySession

    item, config = request.node, request.config
    mark = item.get_closest_marker("replay")
    if mark is None:
        pytest.fail("replay_session needs the mark: @pytest.mark.replay", pytrace=False)
    if len(mark.args) > 1 or not mark.kwargs.keys() <= _KEYWORDS:
        pytest.fail("the mark is replay(source=None, *, live=(), stub=(), on_change='stop')", pytrace=False)
    named = str(mark.args[0]) if mark.args else ""
    source, is_file = find_source(named, item.path, item.nodeid)
    report = config.getoption("--replay-report")
    session = ReplaySession(
        node_id=item.nodeid,
        # A run id names a run that has been: only a file can be recorded anew
        mode=_mode(config) if is_file or _mode(config) == "off" else "replay",
        source=source,
        plan=replay_plan,
        is_strict=bool(config.getoption("--replay-strict")),
        report_path=Path(report) / f"{safe_name(item.nodeid)}.json" if report else None,
        warn=item.warn,
    )
    item.stash[_session_key] = session
    return session


def find_source(named: str, test_file: Path, node_id: str) -> tuple[str, bool]:
    """What a mark names, and whether it is a file: a path (beside the test first), a run id, or the test's own file."""
    if not named:
        test = node_id.partition("::")[2].replace("::", ".")
        return str(test_file.parent / "recordings" / test_file.stem / f"{safe_name(test)}.replay"), True
    beside = test_file.parent / named
    if beside.is_file():
        return str(beside), True
    if Path(named).is_file():
        return str(Path(named).absolute()), True
    is_path = Path(named).suffix in (".replay", ".spool")
    return (str(beside), True) if is_path else (named, False)


def safe_name(name: str) -> str:
    """A file name for a test; two tests never share one."""
    safe = _UNSAFE.sub("-", name).strip("-")[:_NAME_CHARACTERS_MAX]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _mode(config: pytest.Config) -> str:
    return str(config.getoption("--replay-mode"))


def _is_on(item: pytest.Item) -> bool:
    return item.get_closest_marker("replay") is not None and _mode(item.config) != "off"


def _patterns(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))
