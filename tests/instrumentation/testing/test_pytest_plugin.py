"""The pytest plug-in: recorded once against a provider, replayed without it; differences fail with their cause."""

from __future__ import annotations

import json

import pytest

from support.nested_pytest import OURS, OURS_AND_RUNNERS
from support.provider import Provider

pytest_plugins = ["pytester"]

AGENT = """
import asyncio, os
import groq, pytest
import spanreplay

PROMPT = os.environ.get("PROMPT", "what is the capital of France?")

def ask(prompt=PROMPT):
    with groq.Groq(max_retries=0) as client:
        answer = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": prompt}])
    return answer.choices[0].message.content
"""
TIMES = """
TIMES = int(os.environ.get("TIMES", "2"))

@pytest.mark.replay
def test_agent():
    answers = [ask(f"{PROMPT} {n}") for n in range(TIMES)]
    assert len(set(answers)) == TIMES
"""


def _run(pytester: pytest.Pytester, *args: str, plugins: tuple[str, ...] = OURS) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*plugins, *args, timeout=600)


def _record(pytester: pytest.Pytester, provider: Provider, *args: str, plugins: tuple[str, ...] = OURS) -> None:
    result = _run(pytester, "--replay-mode=record", *args, plugins=plugins)
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["spanreplay: --replay-mode=record"])
    provider.stop()
    provider.requests.clear()


def test_u6_recorded_test_replays_without_its_provider(pytester: pytest.Pytester, provider: Provider) -> None:
    """A test recorded once passes when nothing answers any more, and writes a report if asked."""
    pytester.makepyfile(AGENT + TIMES)
    _record(pytester, provider)
    file = pytester.path / "recordings" / "test_u6_recorded_test_replays_without_its_provider" / "test_agent.replay"
    assert file.is_file()
    before = file.read_bytes()
    result = _run(pytester, "--replay-report=reports", "--replay-strict")
    result.assert_outcomes(passed=1)
    assert file.read_bytes() == before
    (report,) = (pytester.path / "reports").iterdir()
    verdict = json.loads(report.read_text())
    assert (verdict["schema"], verdict["verdict"], verdict["counts"]["served"]) == ("divergence/1", "identical", 2)


def test_u6_changed_prompt_fails_with_its_cause(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is the report: the call, the recorded value, the value now, the line."""
    pytester.makepyfile(AGENT + TIMES)
    _record(pytester, provider)
    monkeypatch.setenv("PROMPT", "what is the capital of Spain?")
    result = _run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*diverged at call 1 (llm:openai.chat.completions)*",
            "*messages[[]0[]].content*",
            "*recorded*France*",
            "*now*Spain*",
            "*code*test_u6_changed_prompt_fails_with_its_cause.py:*ask*",
            "*pytest --replay-mode=record*test_agent*",
        ]
    )
    result.stdout.no_fnmatch_line("*ReplayMiss*")
    result.stdout.no_fnmatch_line("*direct cause*")


@pytest.mark.parametrize(("times", "kind"), [("3", "not in the recording"), ("1", "did not make a call")])
def test_u6_extra_and_unplayed_calls_fail(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch, times: str, kind: str
) -> None:
    """One call more than recorded fails, and so does one fewer."""
    pytester.makepyfile(AGENT + TIMES)
    _record(pytester, provider)
    monkeypatch.setenv("TIMES", times)
    result = _run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{kind}*"])


def test_u6_swallowed_miss_still_fails(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that catches everything cannot hide its divergence."""
    swallow = (
        "\n@pytest.mark.replay\ndef test_agent():\n    try:\n        ask()\n    except BaseException:\n        pass\n"
    )
    pytester.makepyfile(AGENT + swallow)
    _record(pytester, provider)
    monkeypatch.setenv("PROMPT", "something else")
    _run(pytester).assert_outcomes(failed=1)


def test_u6_network_is_blocked_in_marked_tests_only(pytester: pytest.Pytester, provider: Provider) -> None:
    """In a marked test a socket outside a recorded call is denied, and the report names it; others may open it."""
    dial = """
import socket
def dial():
    if os.environ.get("DIAL"):
        with socket.socket() as probe:
            probe.connect(("127.0.0.1", int(os.environ["DIAL"])))

@pytest.mark.replay
def test_agent():
    ask()
    dial()

def test_plain():
    dial()
"""
    pytester.makepyfile(AGENT + dial)
    _record(pytester, provider)
    with Provider() as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIAL", str(other.port))
        result = _run(pytester)
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines([f"*connection to 127.0.0.1:{other.port} was denied*"])


def test_u6_asyncio_and_xdist(pytester: pytest.Pytester, provider: Provider) -> None:
    """Concurrent calls in asyncio.run, anyio's runner and parametrised tests replay, also in two processes at once."""
    tests = """
async def fan_out(prompt):
    async with groq.AsyncGroq(max_retries=0) as client:
        def one(n):
            return client.chat.completions.create(
                model="gpt-4o", messages=[{"role": "user", "content": f"{prompt} {n}"}])
        return [a.choices[0].message.content for a in await asyncio.gather(*map(one, range(4)))]

@pytest.mark.replay
@pytest.mark.parametrize("name", ["a", "a/b", "a b", "ä"])
def test_run(name, replay_session):
    assert len(asyncio.run(fan_out(name))) == 4
    assert replay_session.served == (4 if replay_session.mode == "replay" else 0)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.replay
class TestGroup:
    async def test_first(self):
        assert len(await fan_out("first")) == 4

    async def test_second(self):
        assert len(await fan_out("second")) == 4
"""
    pytester.makepyfile(AGENT + tests)
    _record(pytester, provider, "-n", "2", plugins=OURS_AND_RUNNERS)
    written = sorted(p.relative_to(pytester.path) for p in pytester.path.rglob("*.replay"))
    assert len(written) == 6
    before = {p: p.stat().st_mtime_ns for p in pytester.path.rglob("*.*") if "cache" not in str(p)}
    _run(pytester, plugins=OURS_AND_RUNNERS).assert_outcomes(passed=6)
    _run(pytester, "-n", "2", plugins=OURS_AND_RUNNERS).assert_outcomes(passed=6)
    _run(pytester, "-k", "second", plugins=OURS_AND_RUNNERS).assert_outcomes(passed=1, deselected=5)
    assert {p: p.stat().st_mtime_ns for p in pytester.path.rglob("*.*") if "cache" not in str(p)} == before


def test_s5_default_recording_holds_no_secret(pytester: pytest.Pytester, provider: Provider) -> None:
    """Without any configuration, keys in headers and prompts are in none of the recorded files."""
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2p" * 3
    test = f'\n@pytest.mark.replay\ndef test_agent():\n    ask("my key is " + "{secret[:12]}" + "{secret[12:]}")\n'
    pytester.makepyfile(AGENT + test)
    _record(pytester, provider)
    from spanreplay.recording.bundle import unpack

    (file,) = pytester.path.rglob("*.replay")
    _, payloads = unpack(file.read_bytes())
    spools = [p.read_bytes() for p in pytester.path.rglob("*.spool")]
    assert payloads
    assert spools
    for content in [*payloads, *spools]:
        assert b"sk-" not in content
    _run(pytester).assert_outcomes(passed=1)


def test_u6_missing_recording_says_how_to_make_it(pytester: pytest.Pytester, provider: Provider) -> None:
    """Without a recording a marked test fails with the command that records it, and makes no call."""
    pytester.makepyfile(AGENT + TIMES)
    result = _run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["no recording */test_agent.replay", "hint: pytest --replay-mode=record *::test_agent*"]
    )
    assert provider.requests == []


def test_u6_recording_is_refused_in_ci(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If CI is set nothing is recorded, and nothing runs."""
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(AGENT + TIMES)
    result = _run(pytester, "--replay-mode=record")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--replay-mode=record is refused where CI is set*"])
    assert provider.requests == []


def test_s40_live_calls_by_mark_by_fixture_and_off(pytester: pytest.Pytester, provider: Provider) -> None:
    """A plan lets calls run live, which --replay-strict refuses; in mode off a marked test runs as if unmarked."""
    tests = """
@spanreplay.boundary("tool", name="price", effect="read")
def price():
    return os.environ.get("PRICE", "1")

@pytest.mark.replay(live=["tool:price"])
def test_mark():
    ask(); print(price())

class TestFixture:
    @pytest.fixture
    def replay_plan(self):
        return spanreplay.Plan(live=("tool:price",))

    @pytest.mark.replay
    def test_fixture(self):
        ask(); price()
"""
    pytester.makepyfile(AGENT + tests)
    _record(pytester, provider)
    _run(pytester).assert_outcomes(passed=2)
    result = _run(pytester, "--replay-strict")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*--replay-strict: calls ran live*"])
    with Provider() as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GROQ_BASE_URL", other.url)
        _run(pytester, "--replay-mode=off").assert_outcomes(passed=2)
        assert len(other.requests) == 2


@pytest.mark.parametrize("alias", ["none", "replay"])
def test_s5_mode_none_records_nothing(pytester: pytest.Pytester, provider: Provider, alias: str) -> None:
    """vcrpy's `none`: a test without a recording fails, and no request is made."""
    pytester.makepyfile(AGENT + TIMES)
    _run(pytester, f"--replay-mode={alias}").assert_outcomes(failed=1)
    assert provider.requests == []


@pytest.mark.parametrize("alias", ["all", "rewrite"])
@pytest.mark.sampled(1)
def test_s5_mode_all_records_again(pytester: pytest.Pytester, provider: Provider, alias: str) -> None:
    """vcrpy's `all` and pytest-recording's `rewrite`: the provider is asked again, and the file is replaced."""
    pytester.makepyfile(AGENT + TIMES)
    contents = []
    for _ in range(2):
        _run(pytester, f"--replay-mode={alias}").assert_outcomes(passed=1)
        (file,) = pytester.path.rglob("*.replay")
        contents.append(file.read_bytes())
    assert contents[0] != contents[1]
    assert len(provider.requests) == 4


def test_s5_mode_once_records_only_what_is_missing(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`once`: a test without a recording is recorded; with one it replays, and new calls fail; never in CI."""
    pytester.makepyfile(AGENT + TIMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true")
        _run(pytester, "--replay-mode=once").assert_outcomes(failed=1)
        assert provider.requests == []
    for _ in range(2):
        _run(pytester, "--replay-mode=once").assert_outcomes(passed=1)
    assert len(provider.requests) == 2
    monkeypatch.setenv("TIMES", "3")
    result = _run(pytester, "--replay-mode=once")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not in the recording*"])
    assert len(provider.requests) == 2


@pytest.mark.parametrize("alias", ["new_episodes", "auto", "new"])
@pytest.mark.sampled(1)
def test_s9_s5_mode_new_records_what_does_not_fit(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    """Hits replay, a miss records the whole test again, once; a failing test is not recorded; never in CI."""
    fails = """
@pytest.mark.replay
def test_fails():
    ask("always the same")
    assert not os.environ.get("FAIL")
"""
    pytester.makepyfile(AGENT + TIMES + fails)
    for _ in range(2):
        _run(pytester, f"--replay-mode={alias}").assert_outcomes(passed=2)
    assert len(provider.requests) == 3
    before = {file: file.read_bytes() for file in pytester.path.rglob("*.replay")}
    monkeypatch.setenv("TIMES", "3")
    monkeypatch.setenv("FAIL", "1")
    result = _run(pytester, f"--replay-mode={alias}", "-v")
    result.assert_outcomes(passed=1, failed=1)
    assert result.stdout.str().count("test_agent PASSED") == 1
    assert len(provider.requests) == 6
    changed = [file.stem for file, content in before.items() if file.read_bytes() != content]
    assert changed == ["test_agent"]
    _run(pytester, "-k", "agent").assert_outcomes(passed=1, deselected=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true")
        assert _run(pytester, f"--replay-mode={alias}").ret == pytest.ExitCode.USAGE_ERROR
    assert len(provider.requests) == 6


def test_s5_two_tests_have_two_recordings(pytester: pytest.Pytester, provider: Provider) -> None:
    """Each test reads its own file; a mark, a module's `replay_config` or the command line may set the mode."""
    tests = """
@pytest.fixture
def replay_config():
    return {"mode": "once"}

@pytest.mark.replay
def test_first(replay_session):
    assert ask("first")
    print("served", replay_session.served)

@pytest.mark.replay("second.replay")
def test_second():
    assert ask("second")

@pytest.mark.replay("third.jsonl", mode="none")
def test_third():
    assert ask("third")
"""
    pytester.makepyfile(AGENT + tests)
    _run(pytester).assert_outcomes(passed=2, failed=1)
    assert len(provider.requests) == 2
    _run(pytester, "--replay-mode=record", "-k", "third").assert_outcomes(passed=1, deselected=2)
    assert (pytester.path / "third.jsonl").read_bytes().startswith(b'{"format":"spanreplay.jsonl"')
    provider.stop()
    result = _run(pytester, "-s")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*served 1*"])


def test_s5_unknown_mode_is_refused(pytester: pytest.Pytester) -> None:
    """An unknown mode is answered with the valid ones."""
    result = _run(pytester, "--replay-mode=new_world")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'new_world' is not one of replay, record, once, new, *"])


def test_s5_network_is_blocked_where_asked(pytester: pytest.Pytester, provider: Provider) -> None:
    """A test without a recording can be cut off too, by mark or for all, except for allowed hosts."""
    tests = f"""
import socket
pytestmark = pytest.mark.filterwarnings("error")

def dial(host="127.0.0.1"):
    with socket.create_connection((host, {provider.port}), timeout=5):
        pass

@pytest.mark.replay_block_network
def test_blocked():
    with pytest.raises(spanreplay.ReplayMiss, match="127.0.0.1 is not among its allowed hosts"):
        try:
            ask()
        except Exception:
            pass

@pytest.mark.replay_block_network
def test_names():
    with pytest.raises(spanreplay.ReplayMiss, match="api.example.com is not among"):
        dial("api.example.com")

@pytest.mark.replay_block_network(allowed_hosts=["localhost", "10.*"])
def test_allowed():
    dial()

@pytest.mark.replay_block_network
def test_unix_sockets_are_no_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s"); server.listen(); client.connect("s")

def test_plain():
    dial()
"""
    pytester.makepyfile(AGENT + tests)
    _run(pytester).assert_outcomes(passed=5)
    result = _run(pytester, "--replay-block-network")
    result.assert_outcomes(passed=4, failed=1)
    _run(pytester, "--replay-block-network", "--replay-allowed-hosts=127.0.0.*, x").assert_outcomes(passed=5)


def test_u6_own_outcomes_of_a_test_stand(pytester: pytest.Pytester, provider: Provider) -> None:
    """A failing assertion and a skip keep their outcome, even if calls are missing then."""
    tests = """
@pytest.mark.replay
def test_fails():
    first = ask("one")
    if os.environ.get("LATER"):
        assert first == "wrong"
    ask("two")

@pytest.mark.replay
def test_skips():
    ask("three")
    if os.environ.get("LATER"):
        pytest.skip("not today")
    ask("four")
"""
    pytester.makepyfile(AGENT + tests)
    _record(pytester, provider)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATER", "1")
        result = _run(pytester)
        result.assert_outcomes(failed=1, skipped=1)
        result.stdout.fnmatch_lines(["E * AssertionError: *"])


def test_u6_named_source_is_found_beside_the_test(pytester: pytest.Pytester, provider: Provider) -> None:
    """A mark may name a file beside the test, or a run id of the directory."""
    pytester.makepyfile(AGENT + '\n@pytest.mark.replay("incident.replay")\ndef test_file():\n    ask()\n')
    _record(pytester, provider)
    assert (pytester.path / "incident.replay").is_file()
    (spool,) = (pytester.path / ".spanreplay" / "spool").glob("*.spool")
    run_id = spool.name.partition(".")[0]
    pytester.makepyfile(test_by_id=AGENT + f'\n@pytest.mark.replay("{run_id}")\ndef test_id():\n    ask()\n')
    _run(pytester).assert_outcomes(passed=2)
    (pytester.path / "incident.replay").write_bytes(b"PK\x03\x04 torn")
    result = _run(pytester)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*incident.replay is damaged*"])


def test_u6_run_without_marks_loads_nothing(pytester: pytest.Pytester) -> None:
    """Without marked tests the plug-in is one light module: no SDK, no seam, nothing patched."""
    pytester.makepyfile(
        """
import sys, threading

def test_plain():
    ours = {m for m in sys.modules if m.partition(".")[0] in ("spanreplay", "opentelemetry")}
    light = {"spanreplay", "spanreplay.model", "spanreplay.model.call", "spanreplay.model.errors",
             "spanreplay.model.escape", "spanreplay.model.version", "spanreplay.runtime", "spanreplay.runtime.calls",
             "spanreplay.runtime.calls.declared", "spanreplay.testing", "spanreplay.testing.pytest_plugin"}
    assert ours == light, ours - light
    assert "wrapt" not in sys.modules
    assert type(threading.Thread.__dict__["start"]).__name__ == "function"
"""
    )
    _run(pytester, "-W", "error").assert_outcomes(passed=1)
    assert not (pytester.path / ".spanreplay").exists()
