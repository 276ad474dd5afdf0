"""Reports for CI: every verdict as JUnit, SARIF, GitHub annotations and HTML, word for word.

To see what a change of the wording does: SPANREPLAY_TEST_WRITE_GOLDEN=true pytest, then `git diff`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from spanreplay.model.version import VERSION
from spanreplay.report import github, html, junit, sarif
from spanreplay.report.code_line import find_code_line, fingerprints
from spanreplay.report.shape import EXIT_STATUS, Verdict

HERE = Path(__file__).parent
GOLDEN = HERE / "golden_formats"
SARIF_SCHEMA = HERE / "sarif-2.1.0-subset.schema.json"
RENDER = {
    "junit.xml": junit.render,
    "sarif": sarif.render,
    "github.txt": github.render,
    "summary.md": github.render_summary,
    "html": html.render,
}
# Common ground of JUnit's readers: Jenkins' xUnit schema, GitLab and GitHub. Tag → attributes, children.
JUNIT: dict[str, tuple[set[str], list[str]]] = {
    "testsuites": ({"name", "tests", "failures", "errors", "skipped", "time"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time"},
        ["properties", "testcase", "system-out"],
    ),
    "properties": (set(), ["property"]),
    "property": ({"name", "value"}, []),
    "testcase": ({"name", "classname", "time"}, ["skipped", "error", "failure", "system-out"]),
    "failure": ({"type", "message"}, []),
    "error": ({"type", "message"}, []),
    "skipped": ({"type", "message"}, []),
    "system-out": (set(), []),
}


@pytest.mark.parametrize("ending", RENDER)
def test_s65_report_is_word_for_word(verdict: Verdict, case: str, ending: str) -> None:
    """Each verdict in each format is exactly the committed text."""
    shown = RENDER[ending](verdict).replace(f'"version": "{VERSION}"', '"version": "0.0.0"')
    expected = GOLDEN / f"{case}.{ending}"
    if os.environ.get("SPANREPLAY_TEST_WRITE_GOLDEN") == "true":
        GOLDEN.mkdir(exist_ok=True)
        expected.write_text(shown, encoding="utf-8")
    assert shown == expected.read_text(encoding="utf-8")


def _check_junit(element: ET.Element) -> None:
    required, order = JUNIT[element.tag]
    assert required <= set(element.keys()) <= required | {"file", "line"}
    places = [order.index(child.tag) for child in element]
    assert places == sorted(places)
    for child in element:
        _check_junit(child)


def _parse_junit(verdict: Verdict) -> ET.Element:
    root = ET.fromstring(junit.render(verdict).encode())  # noqa: S314 -- our own output
    _check_junit(root)
    for suite in (root, root[0]):
        counted = {name: len(root.findall(f".//testcase/{name}")) for name in ("failure", "error", "skipped")}
        assert [suite.get(n) for n in ("failures", "errors", "skipped")] == [str(n) for n in counted.values()]
        assert suite.get("tests") == str(len(root.findall(".//testcase")))
    return root


def test_s65_junit_is_what_its_readers_know(verdict: Verdict) -> None:
    """The document has the structure of JUnit, and fails exactly if the exit status is not 0."""
    root = _parse_junit(verdict)
    is_green = root.get("failures") == root.get("errors") == "0"
    assert is_green == (EXIT_STATUS[verdict["verdict"]] == 0)
    causes = [d for d in verdict["divergences"] if not d.get("downstream")]
    assert len(root.findall(".//failure")) == len(causes)
    assert root.findtext("./testsuite/system-out")


def test_junit_does_not_pass_what_was_not_compared(verdict: Verdict, case: str) -> None:
    """Output that could not be compared is a skipped case, never a passed one."""
    cases = {c.get("name"): c for c in _parse_junit(verdict).iter("testcase")}
    if case == "identical_unchecked":
        assert cases["standard output as recorded"].find("skipped") is not None
        assert cases["exit status as recorded"].find("skipped") is not None


def _check_sarif(verdict: Verdict) -> Any:
    schema = json.loads(SARIF_SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    log = json.loads(sarif.render(verdict))
    jsonschema.Draft202012Validator(schema).validate(log)
    [run] = log["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    known = [r["fingerprints"]["spanreplay/v1"] for r in run["results"] if "fingerprints" in r]
    assert len(known) == len(set(known))
    return run


def test_s65_sarif_has_what_the_standard_requires(verdict: Verdict) -> None:
    """Each cause is an error at its line, each downstream divergence a note; an identical replay has no result."""
    run = _check_sarif(verdict)
    assert run["invocations"][0]["exitCode"] == EXIT_STATUS[verdict["verdict"]]
    levels = [r["level"] for r in run["results"] if "fingerprints" in r]
    marks = sorted(bool(d.get("downstream")) for d in verdict["divergences"])
    assert levels == ["note" if is_downstream else "error" for is_downstream in marks]
    assert bool(run["results"]) == (verdict["verdict"] not in ("identical", "error"))
    if verdict["divergences"] and verdict["divergences"][0].get("code") == "agent.py:31 run":
        place = run["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "agent.py"
        assert place["region"]["startLine"] == 31


def test_sarif_tells_of_tampering_beside_divergences(attack: Verdict) -> None:
    """A tampered recording is a separate result, whatever else differs."""
    run = _check_sarif({**attack, "verdict": "tampered"})
    assert run["results"][0]["ruleId"] == "tampered"
    assert len(run["results"]) == 1 + len(attack["divergences"])


def test_fingerprint_stays_while_lines_and_values_move() -> None:
    """The fingerprint uses only boundary, kind and path; equal ones are numbered."""
    one: Any = {"kind": "changed_call", "boundary": "tool:a", "code": "a.py:1 f", "diff": [{"path": "x", "now": 1}]}
    moved: Any = {**one, "code": "b.py:9 g", "seq": 4, "diff": [{"path": "x", "now": 2}]}
    other: Any = {**one, "boundary": "tool:b"}
    [a] = fingerprints([one])
    assert fingerprints([moved]) == [a]
    assert fingerprints([other]) != [a]
    assert fingerprints([one, moved]) == [a, a.removesuffix("1") + "2"]


@pytest.mark.parametrize(
    ("code", "folder", "expected"),
    [
        ("agent.py:31 run", "", ("agent.py", 31, "agent.py")),
        ("agent.py:31 run", "bots/a", ("bots/a/agent.py", 31, "bots/a/agent.py")),
        ("/srv/my agent.py:7 <module>", "bots", ("/srv/my agent.py", 7, "file:///srv/my%20agent.py")),
        ("./a/../b.py:2", "", ("b.py", 2, "b.py")),
        ("<stdin>:1 <module>", "", None),
        ("agent.py", "", None),
        ("agent.py:0 f", "", None),
        ("a:b.py:3 f", "", ("a:b.py", 3, "a%3Ab.py")),
        ("", "", None),
    ],
    ids=["relative", "in a folder", "absolute", "no name", "no file", "no line", "line 0", "colon", "empty"],
)
def test_place_is_a_file_of_the_repository(code: str, folder: str, expected: tuple[str, int, str] | None) -> None:
    """A place is a file and a line, or none."""
    place = find_code_line({"code": code}, folder)
    assert (None if place is None else (place.file, place.line, place.uri)) == expected


def _unescape(content: str) -> str:
    for name, character in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        content = content.replace(name, character)
    return content


def test_s65_github_command_is_read_back_as_it_was_meant(verdict: Verdict) -> None:
    """Each line is one command, as parsed by GitHub's own rule."""
    for line in github.render(verdict).splitlines():
        match = re.fullmatch(r"::(error|warning|notice) ([^:\n]*)::(.*)", line)
        assert match
        properties = dict(p.split("=", 1) for p in match[2].split(","))
        assert properties.keys() <= {"file", "line", "title"}
        assert _unescape(properties["title"]).startswith("spanreplay")


def test_s65_attack_stays_content_everywhere(attack: Verdict) -> None:
    """Hostile content ends no element, starts no command, and becomes no link and no control character."""
    root = _parse_junit(attack)
    assert {e.tag for e in root.iter()} <= JUNIT.keys()
    run = _check_sarif(attack)
    assert not any("](" in r["message"]["text"] for r in run["results"])
    assert "\x1b" not in json.dumps(run["results"][0]["message"])
    lines = github.render(attack).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("::error file=a b%2C%3Ax].py\\x1b,line=3,title=") for line in lines)
    for page in (github.render_summary(attack), html.render(attack)):
        page.encode("utf-8")
        assert "<script" not in page
        assert "<img" not in page
        assert "\x1b" not in page
    assert "(http://evil" not in re.sub(r"<pre>.*?</pre>", "", github.render_summary(attack), flags=re.DOTALL)
