"""The documentation's site: every page is in it, every link leads somewhere, and it asks nobody else."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"


class _Page(HTMLParser):
    """The links of a page, and what a browser would load for it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link or a resource."""
        found = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif tag in ("script", "img", "iframe"):
            self.loaded.append(found.get("src", ""))
        elif tag == "link" and "stylesheet" in found.get("rel", ""):
            self.loaded.append(found.get("href", ""))


def _read(page: Path) -> _Page:
    parser = _Page()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def _build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "tools" / "site")]
    return subprocess.run(
        [*command, str(source), str(target)], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link or anchor between its pages is an error."""
    target = tmp_path_factory.mktemp("site")
    done = _build(DOCS, target)
    assert done.returncode == 0, done.stderr
    return target


def test_u7_every_page_is_in_the_site(site: Path) -> None:
    """With its title in the navigation of the first page, and without the pages for developers."""
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    pages -= {"REQUIREMENTS", "STATUS"}
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    assert pages <= built
    assert not {"REQUIREMENTS", "STATUS"} & built
    linked = {link.partition("#")[0].removesuffix(".html") for link in _read(site / "README.html").links}
    assert pages - {"README"} <= linked


def test_u7_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """No fonts, scripts or pictures of third parties."""
    for page in site.rglob("*.html"):
        assert [each for each in _read(page).loaded if re.match(r"(?:https?:)?//", each)] == []


def test_u7_links_to_the_repository_name_files_that_are_there(site: Path) -> None:
    """A link out of the folder of the pages becomes one to the repository."""
    found = {link for page in site.rglob("*.html") for link in _read(page).links if "/blob/main/" in link}
    paths = {re.split(r"[#?]", link.partition("/blob/main/")[2])[0] for link in found}
    assert {"SECURITY.md", "docs/STATUS.md"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_u7_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """So that nobody publishes one."""
    source = tmp_path / "docs"
    source.mkdir()
    (source / "README.md").write_text("# Pages\n\n[A part](#that-is-not-there)\n", encoding="utf-8")
    done = _build(source, tmp_path / "site")
    assert done.returncode == 1
    assert "that-is-not-there" in done.stderr
