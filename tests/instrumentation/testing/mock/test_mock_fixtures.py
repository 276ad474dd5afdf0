"""The fixtures mock_…: tests written for pytest-mockllm run on them when only the plug-in is exchanged."""

from __future__ import annotations

import re
from importlib.metadata import metadata

import pytest

from support.nested_pytest import OURS_AND_RUNNERS

pytest_plugins = ["pytester"]

_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*OURS_AND_RUNNERS, *args, timeout=600)


def test_s10_readme_of_pytest_mockllm_runs_unchanged(pytester: pytest.Pytester) -> None:
    """Every snippet of its README that uses a mock passes on our fixtures, byte for byte as written there."""
    text = str(metadata("pytest-mockllm").json["description"])
    snippets = [code for code in _FENCE.findall(text) if "(mock_" in code]
    tests = sum(len(re.findall(r"^(?:async )?def test_", code, re.MULTILINE)) for code in snippets)
    assert tests >= 9, "the README is another one"
    for number, code in enumerate(snippets):
        (pytester.path / f"test_snippet_{number}.py").write_text(code)
    result = _run(pytester, "-W", "ignore::pytest.PytestDeprecationWarning")
    result.assert_outcomes(passed=tests)


def test_s10_fixtures_pick_their_provider(pytester: pytest.Pytester) -> None:
    """A mark names the provider; the option makes all mocks strict; a bad name is one line."""
    pytester.makepyfile(
        """
import anthropic, openai, pytest
from spanreplay.testing.mock import MockExhausted

def ask():
    with openai.OpenAI() as client:
        return client.chat.completions.create(model="g", messages=[]).choices[0].message.content

@pytest.mark.llm_mock(provider="anthropic")
def test_marked(mock_llm):
    mock_llm.add_response("hello")
    with anthropic.Anthropic() as claude:
        assert claude.messages.create(model="c", max_tokens=1, messages=[]).content[0].text == "hello"

@pytest.mark.llm_mock("clippy")
def test_unknown(mock_llm):
    pass

def test_placeholder(mock_openai):
    assert ask()
"""
    )
    result = _run(pytester)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["no mock of provider 'clippy'", "hint: one of: openai, *"])
    result = _run(pytester, "--replay-mock-strict", "-k", "placeholder")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*MockExhausted: no answer is left for llm:openai.chat.completions*"])
