"""pytest plug-in: a test marked `replay` runs against its recording, without network, and fails if it diverges.

    @pytest.mark.replay                       # recordings/<module>/<test>.replay, beside the test
    @pytest.mark.replay("incident.replay", live=["tool:get_*"])
    @pytest.mark.canary                       # with --replay-mode=canary, its models run live

The fixtures `mock_llm`, `mock_openai`, `mock_anthropic`, `mock_gemini` and `mock_langchain` answer model calls without
a recording.

pytest loads this module in every run, so it imports only pytest until a marked test is set up.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from spanreplay.activate.blocks import Plan
    from spanreplay.runtime.process.surroundings import Surroundings
    from spanreplay.testing.mock import MockLLM
    from spanreplay.testing.pytest_session import ReplaySession

MODES: Final = ("replay", "record", "once", "new", "canary", "off")
MODE_ALIASES: Final = {"none": "replay", "all": "record", "rewrite": "record", "new_episodes": "new", "auto": "new"}
"""Names of the modes in vcrpy and pytest-recording."""
_RECORDING: Final = frozenset({"record", "new"})
_KEYWORDS: Final = frozenset({"live", "stub", "rerun", "on_change", "mode", "sandbox"})
_SIGNATURE: Final = "replay(source=None, *, live=(), stub=(), rerun=(), on_change='stop', mode=None, sandbox=True)"
_AGREEMENT: Final = "judge_agreement"
"""Property of a test's report: how often a judge agrees with people."""
_session_key: Final = pytest.StashKey["ReplaySession"]()
_renewed_key: Final = pytest.StashKey[bool]()
"""On a test in mode `new`: whether its recording did not fit and is being re-recorded."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line options, all named --replay-…."""
    group = parser.getgroup("spanreplay", "replay of recorded agents (spanreplay)")
    group.addoption(
        "--replay-mode",
        type=_read_mode,
        default="replay",
        metavar="{" + ",".join(MODES) + "}",
        help="marked tests: replay their recordings (default); record: record them again; once: record those that "
        "have no recording yet; new: also record those whose recording no longer fits; canary: run the "
        "models of tests marked canary live, and compare their answers; off: run as if unmarked; "
        "vcrpy's none, all, rewrite and new_episodes are understood",
    )
    group.addoption(
        "--replay-strict",
        action="store_true",
        help="fail also where a recording is incomplete or a call ran live",
    )
    group.addoption(
        "--replay-mock-strict", action="store_true", help="mocked models fail where no answer was set for them"
    )
    group.addoption(
        "--replay-block-network", action="store_true", help="deny the network also to tests without a recording"
    )
    group.addoption(
        "--replay-allowed-hosts",
        metavar="HOSTS",
        default="",
        help="with --replay-block-network: hosts that stay open, separated by commas, with * and ?",
    )
    group.addoption(
        "--replay-no-sandbox",
        action="store_true",
        help="let replayed tests write files and start programs for real; the network stays denied",
    )
    group.addoption("--replay-report", metavar="DIR", help="write each verdict as JSON into this directory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and refuse to record in CI. Raises: pytest.UsageError."""
    config.addinivalue_line(
        "markers",
        f"{_SIGNATURE}: run against a recording: a file, a run id, or by default "
        "recordings/<module>/<test>.replay beside the test",
    )
    config.addinivalue_line(
        "markers",
        "canary: with --replay-mode=canary, its models run live and their answers are compared with the recorded ones",
    )
    config.addinivalue_line(
        "markers", "replay_block_network(allowed_hosts=()): deny the network to a test, except for these hosts"
    )
    config.addinivalue_line("markers", "llm_mock(provider=''): which provider the fixture mock_llm answers for")
    mode = _mode(config)
    if mode in _RECORDING and _is_ci():
        raise pytest.UsageError(
            f"--replay-mode={mode} is refused where CI is set: record on your own machine and commit the files"
        )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the mode in the header, unless it is `replay`."""
    mode = _mode(config)
    return None if mode == "replay" else f"spanreplay: --replay-mode={mode}"


def _read_mode(text: str) -> str:
    mode = MODE_ALIASES.get(text, text)
    if mode not in MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join((*MODES, *MODE_ALIASES))}")
    return mode


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Add the fixture `replay_session` to a marked test."""
    fixtures = getattr(item, "fixturenames", None)
    if isinstance(fixtures, list) and "replay_session" not in fixtures and _is_on(item):
        fixtures.append("replay_session")


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtest_protocol")
def pytest_spanreplay_block_network(item: pytest.Item) -> Generator[None, Any, Any]:
    """Deny the network to a test and its fixtures, if an option or its mark asks for it."""
    mark = item.get_closest_marker("replay_block_network")
    if mark is None and not item.config.getoption("--replay-block-network"):
        return (yield)
    if item.get_closest_marker("replay") is not None:  # a replay denies the network itself; recording needs it
        return (yield)
    from spanreplay.testing.pytest_network import blocked

    allowed = str(item.config.getoption("--replay-allowed-hosts")).split(",")
    if mark is not None:
        allowed = list(_patterns(mark.kwargs.get("allowed_hosts", mark.args[0] if mark.args else ())))
    with blocked(host.strip() for host in allowed if host.strip()):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run the body of a marked test inside its recording or replay, and judge it."""
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


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Keep files that a fixture writes for other tests, even if it is set up while a replay runs."""
    if _session_of(request) is None:
        return (yield)
    from spanreplay.runtime.process.surroundings import set_aside

    with set_aside():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the agreement of a judge that a test has calibrated to its report."""
    calibration = sys.modules.get("spanreplay.testing.calibration")
    if calibration is not None and call.when == "call":
        item.user_properties += [(_AGREEMENT, text) for text in calibration.take_reports()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how often judges agree with people."""
    reports = [each for name in ("passed", "failed") for each in terminalreporter.getreports(name)]
    lines = [str(text) for each in reports for name, text in each.user_properties if name == _AGREEMENT]
    if lines:
        terminalreporter.section("judges")
        for line in lines:
            terminalreporter.line(line)


def _session_of(request: pytest.FixtureRequest) -> ReplaySession | None:
    """The session of the test that requests a fixture; None before it has one."""
    item = getattr(request, "_pyfuncitem", None)
    return None if item is None else item.stash.get(_session_key, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In mode `new`, rerun a test whose recording does not fit, and record it; only the second run counts."""
    if not _is_on(item) or not _may_be_new(item):
        return None
    from _pytest.runner import runtestprotocol

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    session = item.stash.get(_session_key, None)
    if item.stash.get(_renewed_key, None) is False and session is not None and session.is_outdated:
        item.stash[_renewed_key] = True
        item._initrequest()  # type: ignore[attr-defined]  # fixtures are set up again, as plug-ins that rerun tests do
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _may_be_new(item: pytest.Item) -> bool:
    """Whether the command line or the mark asks for mode `new`."""
    mark = item.get_closest_marker("replay")
    marked = None if mark is None else mark.kwargs.get("mode")
    return _mode(item.config) == "new" or MODE_ALIASES.get(str(marked), marked) == "new"


@pytest.fixture
def replay_config() -> dict[str, Any]:
    """Default keywords for the mark `replay`; override this fixture in a module."""
    return {}


@pytest.fixture
def replay_plan(request: pytest.FixtureRequest, replay_config: dict[str, Any]) -> Plan:
    """The plan from the test's mark; override this fixture to choose which calls run live."""
    from spanreplay.model.errors import ConfigError
    from spanreplay.replayer.resolve.plan import build_plan

    mark = request.node.get_closest_marker("replay")
    options = {**replay_config, **({} if mark is None else mark.kwargs)}
    try:
        return build_plan(
            stub=_patterns(options.get("stub", ())),
            live=_patterns(options.get("live", ())),
            rerun=_patterns(options.get("rerun", ())),
            on_change=str(options.get("on_change", "stop")),
        )
    except ConfigError as exc:
        pytest.fail(f"the mark replay: {exc}", pytrace=False)


@pytest.fixture
def canary_judge() -> Callable[[str], str] | None:
    """Asks a model whether another answer is as good; override this fixture, or each other answer fails a canary."""
    return None


@pytest.fixture
def replay_session(
    request: pytest.FixtureRequest,
    replay_plan: Plan,
    replay_config: dict[str, Any],
    canary_judge: Callable[[str], str] | None,
) -> ReplaySession:
    """The replay of this test: `.served`, `.divergences`, `.verdict()`, `.mode`; it starts with the test's body."""
    from spanreplay.testing.file_names import safe_name
    from spanreplay.testing.pytest_session import ReplaySession

    item, config = request.node, request.config
    mark = item.get_closest_marker("replay")
    if mark is None:
        pytest.fail("replay_session needs the mark: @pytest.mark.replay", pytrace=False)
    options = {**replay_config, **mark.kwargs}
    if len(mark.args) > 1 or not options.keys() <= _KEYWORDS:
        pytest.fail(f"the mark is {_SIGNATURE}", pytrace=False)
    named = str(mark.args[0]) if mark.args else ""
    source, is_file = find_source(named, item.path, item.nodeid)
    report = config.getoption("--replay-report")
    mode = _choose_mode(config, options.get("mode"), source if is_file else None)
    if mode == "new":
        mode = "record" if item.stash.get(_renewed_key, False) else "replay"
        item.stash.setdefault(_renewed_key, False)
    session = ReplaySession(
        node_id=item.nodeid,
        mode=mode,
        source=source,
        plan=replay_plan,
        is_strict=bool(config.getoption("--replay-strict")),
        report_path=Path(report) / f"{safe_name(item.nodeid)}.json" if report else None,
        warn=item.warn,
        has_sandbox=bool(options.get("sandbox", True)) and not config.getoption("--replay-no-sandbox"),
        surroundings=lambda: _surroundings(item),
        is_canary=_mode(config) == "canary" and item.get_closest_marker("canary") is not None,
        judge=canary_judge,
    )
    item.stash[_session_key] = session
    return session


def _surroundings(item: pytest.Item) -> Surroundings:
    """The folders of a test at the start of its body."""
    from spanreplay.runtime.process.surroundings import Surroundings

    config, fixtures = item.config, getattr(item, "funcargs", {})
    root, here = os.path.realpath(config.rootpath), os.path.realpath(Path.cwd())
    is_moved = here != os.path.realpath(config.invocation_params.dir)
    aliases: dict[str, str] = {}
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:  # the body may create a folder below it later
        aliases[os.path.realpath(factory.getbasetemp())] = "<basetemp>"
    for name in ("tmpdir", "tmp_path"):
        if name in fixtures:
            aliases[os.path.realpath(str(fixtures[name]))] = "<tmp_path>"
    return Surroundings(here if is_moved else root, aliases, is_test=True)


def _choose_mode(config: pytest.Config, marked: Any, file: str | None) -> str:
    """Choose the mode of one test; a mark's own mode applies unless the command line names one."""
    mode = _mode(config)
    if mode == "replay" and marked is not None:
        try:
            mode = _read_mode(str(marked))
        except argparse.ArgumentTypeError as exc:
            pytest.fail(f"the mark replay: mode {exc}", pytrace=False)
    if mode == "off":
        return mode
    if file is None or mode == "canary":  # a run id names a past run: only a file can be re-recorded
        return "replay"
    if mode == "once":
        # In CI a test without a recording fails, with a message that says so
        return "replay" if Path(file).exists() or _is_ci() else "record"
    if mode in _RECORDING and _is_ci():
        pytest.fail(
            f"mode={mode!r} is refused where CI is set: record on your own machine and commit the file", pytrace=False
        )
    return "record" if mode == "new" and not Path(file).exists() else mode


def find_source(named: str, test_file: Path, node_id: str) -> tuple[str, bool]:
    """A mark's source, and whether it is a file: a path (first beside the test), a run id, or the default file."""
    if not named:
        from spanreplay.testing.file_names import FOLDER, safe_name

        test = node_id.partition("::")[2].replace("::", ".")
        return str(test_file.parent / FOLDER / test_file.stem / f"{safe_name(test)}.replay"), True
    beside = test_file.parent / named
    if beside.is_file():
        return str(beside), True
    if Path(named).is_file():
        return str(Path(named).absolute()), True
    is_path = Path(named).suffix in (".replay", ".jsonl", ".spool")
    return (str(beside), True) if is_path else (named, False)


@pytest.fixture
def mock_llm(request: pytest.FixtureRequest) -> Generator[MockLLM, None, None]:
    """Mocked models of any provider; `@pytest.mark.llm_mock(provider="anthropic")` chooses one provider."""
    mark = request.node.get_closest_marker("llm_mock")
    provider = "" if mark is None else str(mark.kwargs.get("provider", mark.args[0] if mark.args else ""))
    yield from _mock(request, provider)


@pytest.fixture
def mock_openai(request: pytest.FixtureRequest) -> Generator[MockLLM, None, None]:
    """Mocks OpenAI's chat completions, responses and embeddings."""
    yield from _mock(request, "openai")


@pytest.fixture
def mock_anthropic(request: pytest.FixtureRequest) -> Generator[MockLLM, None, None]:
    """Mocks Anthropic's messages."""
    yield from _mock(request, "anthropic")


@pytest.fixture
def mock_gemini(request: pytest.FixtureRequest) -> Generator[MockLLM, None, None]:
    """Mocks Google's generateContent."""
    yield from _mock(request, "gemini")


@pytest.fixture
def mock_langchain(request: pytest.FixtureRequest) -> Generator[MockLLM, None, None]:
    """Mocked models of any provider for LangChain; `.model` is a chat model to pass in."""
    yield from _mock(request, "")


def _mock(request: pytest.FixtureRequest, provider: str) -> Generator[MockLLM, None, None]:
    from spanreplay.model.errors import SpanreplayError
    from spanreplay.testing.mock import MockLLM

    is_strict = bool(request.config.getoption("--replay-mock-strict"))
    try:
        with MockLLM(provider, is_strict=is_strict) as mocked:
            yield mocked
    except SpanreplayError as exc:
        pytest.fail(f"{exc}\nhint: {exc.hint}" if exc.hint else str(exc), pytrace=False)


def _is_ci() -> bool:
    return os.environ.get("CI", "").strip().lower() in ("true", "1", "yes")


def _mode(config: pytest.Config) -> str:
    return str(config.getoption("--replay-mode"))


def _is_on(item: pytest.Item) -> bool:
    return item.get_closest_marker("replay") is not None and _mode(item.config) != "off"


def _patterns(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))
