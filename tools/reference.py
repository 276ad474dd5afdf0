"""Writes docs/reference from the code: every command's --help and the table of settings; --check compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click

from spanreplay.cli.app import COMMANDS, app
from spanreplay.dialects._table import ROWS, load
from spanreplay.model.config import SETTINGS
from spanreplay.report.shape import EXIT_STATUS
from spanreplay.seams.table import SEAMS, Seam

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
AGENTS = "frameworks/agents.md"
"""Written by hand: agents from PyPI that were tried."""
HEAD = "<!-- Written by `make docs` from the code; do not edit. -->\n"
WIDTH = 100
PROTOCOLS: dict[str, list[str]] = {}
for ends, module, class_name in ROWS:
    for end in ends.split():
        PROTOCOLS.setdefault(end, []).append(load(module, class_name).name)


def _help(context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


def render_commands() -> str:
    """The page of the command line; commands of extras are named, their own pages describe them."""
    options = {**app.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    context = click.Context(app, info_name="spanreplay", **options)
    parts = [f"{HEAD}# Command line\n", _help(context)]
    for name in COMMANDS:
        command = app.get_command(context, name)
        assert command is not None
        parts.append(_help(click.Context(command, info_name=name, parent=context)))
    rows = "\n".join(f"| {status} | {word} |" for word, status in sorted(EXIT_STATUS.items(), key=lambda r: r[1]))
    parts.append(f"## Exit status of a replay\n\n| Status | Verdict |\n| --- | --- |\n{rows}\n| 2 | wrong usage |\n")
    return "\n".join(parts)


def render_settings() -> str:
    """The page of the settings."""
    lines = [f"{HEAD}# Settings\n", "Environment variables; an empty value is an unset one.\n"]
    lines += ["| Name | Default | Meaning |", "| --- | --- | --- |"]
    for setting in SETTINGS:
        choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
        default = f"`{setting.default}`" if setting.default else ""
        lines.append(f"| `{setting.name}` | {default} | {setting.meaning}{choices} |")
    return "\n".join(lines) + "\n"


def _pins() -> Iterator[tuple[str, str]]:
    """(distribution, version) of everything that the tests run with."""
    files = [ROOT / "tools" / "constraints.txt", *sorted((ROOT / "tests" / "agents" / "requirements").glob("*.txt"))]
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            if pin := re.match(r"([\w.-]+)(?:\[[\w,-]*\])?==([\w.*]+)", line):
                yield re.sub(r"[-_.]+", "-", pin[1]).lower(), pin[2]


def _tested(distribution: str) -> str:
    if distribution == "python":
        return "3.10–3.14, as far as they are installed where `make matrix` runs"
    found = {version for name, version in _pins() if name in (distribution, f"{distribution}-binary")}
    by_number = sorted(found, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
    return ", ".join(by_number) or "the newest that pip gives"


def _page_of(seam: Seam) -> str:
    return seam.page or seam.distribution


def _render_seam(seam: Seam) -> list[str]:
    rows = {
        "Records": seam.records,
        "Kind": seam.kind,
        "Effect": seam.effect,
        "Lane": seam.lanes,
        "Supported": seam.versions,
        "Tested": _tested(seam.distribution),
        "Not recorded": seam.omits,
        "Patches at the import of": ", ".join(f"`{trigger}`" for trigger in seam.triggers),
    }
    return [f"## {seam.name}\n", "| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items()), ""]


def render_frameworks() -> dict[str, str]:
    """One page a library, and their index."""
    pages: dict[str, list[Seam]] = {}
    for seam in SEAMS:
        pages.setdefault(_page_of(seam), []).append(seam)
    rendered = {}
    for page, seams in sorted(pages.items()):
        lines = [f"{HEAD}# {page}\n", "What is recorded of it, without a change to the agent's code.\n"]
        for seam in seams:
            lines += _render_seam(seam)
        lines += ["What these words mean: [architecture](../ARCHITECTURE.md). All libraries: [index](index.md)."]
        rendered[f"frameworks/{page}.md"] = "\n".join(lines) + "\n"
    lines = [f"{HEAD}# Frameworks and libraries\n", "| Library | Records | Tested with |", "| --- | --- | --- |"]
    for page, seams in sorted(pages.items()):
        records = "; ".join(dict.fromkeys(s.records for s in seams))
        lines.append(f"| [{page}]({page}.md) | {records} | {_tested(seams[0].distribution)} |")
    lines += ["\nCalls of models are recorded at the transport, whichever library makes them; how they are read:"]
    lines += [
        "[what is recorded](../reference/coverage.md). Whole agents from PyPI that were tried: [agents](agents.md)."
    ]
    rendered["frameworks/index.md"] = "\n".join(lines) + "\n"
    return rendered


def render_coverage() -> str:
    """The page of what is recorded without a change to the code."""
    lines = [f"{HEAD}# What is recorded\n", "## Libraries\n"]
    lines += ["A library is covered from its import on, in whatever version is installed; `spanreplay doctor -- CMD`"]
    lines += ["tells which took.\n", "| Seam | Package | Records |", "| --- | --- | --- |"]
    lines += [f"| {s.name} | [`{s.distribution}`](../frameworks/{_page_of(s)}.md) | {s.records} |" for s in SEAMS]
    lines += ["\n## Protocols of models\n"]
    lines += ["A request is read as a call of a model by its path, at any host; every other request is kind `http`.\n"]
    lines += ["| POST | Read as |", "| --- | --- |"]
    lines += [f"| `…{suffix}` | {' or '.join(found)} |" for suffix, found in PROTOCOLS.items()]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the pages, or with --check tell which are stale."""
    pages = {
        "reference/cli.md": render_commands(),
        "reference/settings.md": render_settings(),
        "reference/coverage.md": render_coverage(),
        "divergence-1.schema.json": (files("spanreplay.report") / "divergence-1.schema.json").read_text("utf-8"),
        **render_frameworks(),
    }
    left_over = {f"frameworks/{p.name}" for p in (DOCS / "frameworks").glob("*.md")} - pages.keys() - {AGENTS}
    if "--check" not in argv:
        for name, content in pages.items():
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / name).write_text(content, encoding="utf-8")
        for name in left_over:
            (DOCS / name).unlink()
        return 0
    stale = [
        f"docs/{name}"
        for name, content in pages.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != content
    ]
    stale += [f"docs/{name}" for name in sorted(left_over)]
    if stale:
        sys.stderr.write(f"stale, run `make docs`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
