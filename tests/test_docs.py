"""The documents are true: links work, commands and options exist, the README comes to the point."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from spanreplay.cli.app import COMMANDS, app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if p.name not in ("REQUIREMENTS.md", "STATUS.md")
)
WRITTEN_BY_TESTS = {ROOT / "docs" / "STATUS.md"}
_LINK = re.compile(r"\]\(([^)#\s]+)")
_FENCE = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def _commands(page: Path) -> list[list[str]]:
    """Every `spanreplay …` line of a page's shell blocks, as words."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    split = [shlex.split(line, comments=True) for line in lines]
    return [words for words in split if words[:1] == ["spanreplay"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_docs_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository."""
    targets = [t for t in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in t]
    broken = [t for t in targets if not (page.parent / t).exists() and page.parent / t not in WRITTEN_BY_TESTS]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_docs_commands_exist(page: Path) -> None:
    """Every command in a shell block exists and has the options that it is shown with."""
    others = {point.name for point in entry_points(group="spanreplay.commands")}
    for words in _commands(page):
        name = words[1]
        assert name in COMMANDS or name in others, words
        if name not in COMMANDS:
            continue
        command = app.get_command(click.Context(app), name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        ours = words[2 : words.index("--")] if "--" in words else words[2:]
        assert {w for w in ours if w.startswith("-")} <= known, words


def test_u4_readme_comes_to_the_point() -> None:
    """Under 150 words and one picture precede the first command."""
    head = (ROOT / "README.md").read_text(encoding="utf-8").partition("```sh")[0]
    assert len(head.split()) < 150
    assert head.count("![") == 1


def test_w8_documentation_has_four_parts_and_every_page_in_one() -> None:
    """The index has a part to learn, to do, to look up and to understand, and leads to every page for users."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    parts = re.findall(r"^\*\*([\w ]+)\*\*", index, re.MULTILINE)
    assert parts == ["Learn", "Do", "Look up", "Understand"]
    linked = {(ROOT / "docs" / target).resolve() for target in _LINK.findall(index)}
    pages = {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"}
    assert pages - linked == set()


def test_w8_concepts_and_glossary_are_one_page() -> None:
    """Each word that the verdict and the commands use is explained on one page."""
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    words = set(re.findall(r"^\| (\w[\w -]*) \|", page, re.MULTILINE))
    assert {"run", "unit", "boundary", "call", "lane", "key", "recording", "manifest", "plan", "verdict"} <= words
    assert {"replay", "divergence", "level", "effect", "hole", "token", "spool"} <= words


@pytest.mark.parametrize("page", [p for p in PAGES if "decisions" not in p.parts], ids=lambda p: p.name)
def test_w8_requirements_are_out_of_a_users_way(page: Path) -> None:
    """Only pages for those who work on the project lead to the requirements and their proofs."""
    if page.name in ("CONTRIBUTING.md", "CHANGELOG.md") or page == ROOT / "docs" / "README.md":
        return
    assert not [
        t for t in _LINK.findall(page.read_text(encoding="utf-8")) if t.endswith(("REQUIREMENTS.md", "STATUS.md"))
    ]


def test_docs_reference_is_current() -> None:
    """The generated pages match the code."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_docs_make_lists_its_verbs() -> None:
    """`make` alone lists every verb with its effect."""
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    for verb in ("demo", "test", "check", "bench", "e2e", "matrix", "proto", "docs"):
        assert f"  make {verb} " in done.stdout, verb


def test_every_protection_in_security_names_a_test() -> None:
    """Each row of the threat table names a test file, or test functions, that exist."""
    table = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## What is not protected")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| Threat"))]
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    functions = set(re.findall(r"def (test_\w+)\(", sources))
    files = {p.name for p in (ROOT / "tests").rglob("test_*.py")}
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+|(?:tests/[\w/]+/)?test_\w+(?:\.py)?)`", row)
        assert named, row
        for name in named:
            assert name in functions or name.rpartition("/")[2] in files or (ROOT / name).is_dir(), name
