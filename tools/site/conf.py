"""Sphinx: the pages of docs/ as a site. Links to files outside of it go to the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from pygments.lexers.special import TextLexer

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "https://github.com/spanreplay/spanreplay"
_LINK: Final = re.compile(r"(?<=\]\()([^)#\s]+)")
_NAVIGATION: Final = {
    "Learn": ["tutorial"],
    "Do": [
        "production", "plans", "pytest", "assertions", "fuzz", "bisect", "promote", "fork",
        "coding-agents", "reuse", "sharing", "diff", "human", "drift", "other-languages", "deploy", "kernels",
    ],
    "Look up": ["reference/*", "frameworks/*"],
    "Understand": ["concepts", "divergences", "levels", "ARCHITECTURE", "decisions/*"],
}  # fmt: skip

project = "spanreplay"
author = "the spanreplay developers"
extensions = ["myst_parser"]
root_doc = "README"
# For those who work on spanreplay, not for its users
exclude_patterns = ["REQUIREMENTS.md", "STATUS.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["strikethrough"]
suppress_warnings = ["myst.strikethrough"]
nitpicky = True
html_theme = "furo"
html_title = "spanreplay"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}


def _prepare(app: Any, name: str, source: list[str]) -> None:
    """Point links at the repository whose target is no page; give the first page the navigation."""
    here = PurePosixPath("docs", name).parent

    def replace(match: re.Match[str]) -> str:
        target = match[1]
        if urlsplit(target).scheme or target.startswith("/"):
            return target
        path = (ROOT / here / target).resolve().relative_to(ROOT)
        is_page = path.suffix == ".md" and DOCS in (ROOT / path).parents and path.name not in exclude_patterns
        return target if is_page or path.suffix == ".svg" else f"{REPOSITORY}/blob/main/{path}"

    source[0] = _LINK.sub(replace, source[0])
    if name == root_doc:
        trees = (
            f"```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n" + "\n".join(pages) + "\n```\n"
            for caption, pages in _NAVIGATION.items()
        )
        source[0] += "\n" + "\n".join(trees)


def setup(app: Any) -> None:
    """Sphinx's entry point."""
    app.connect("source-read", _prepare)
    app.add_lexer(
        "mermaid", TextLexer
    )  # GitHub draws the diagrams; a script that would do it here comes from elsewhere
