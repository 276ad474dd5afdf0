"""Writes docs/reference from the code: every command's --help and the table of settings; --check compares."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spanreplay.cli.app import COMMANDS, app
from spanreplay.config import SETTINGS
from spanreplay.dialects import find_dialect
from spanreplay.dialects._table import _ROWS as ROWS
from spanreplay.report.shape import EXIT_STATUS
from spanreplay.seams._table import SEAMS

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference"
HEAD = "<!-- Written by `make docs` from the code; do not edit. -->\n"
WIDTH = 100
PROTOCOLS = {
    suffix: dialect.name
    for suffix, *_ in ROWS
    if (dialect := find_dialect("POST", f"http://host{'' if suffix[0] == '/' else '/model'}{suffix}"))
}


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


def render_coverage() -> str:
    """The page of what is recorded without a change to the code."""
    lines = [f"{HEAD}# What is recorded\n", "## Libraries\n"]
    lines += ["A library is covered from its import on, in whatever version is installed; `spanreplay doctor -- CMD`"]
    lines += ["tells which took.\n", "| Seam | Package | Records |", "| --- | --- | --- |"]
    lines += [f"| {s.name} | `{s.distribution}` | {s.records} |" for s in SEAMS]
    lines += ["\n## Protocols of models\n"]
    lines += ["A request is read as a call of a model by its path, at any host; every other request is kind `http`.\n"]
    lines += ["| POST | Read as |", "| --- | --- |"]
    lines += [f"| `…{suffix}` | {name} |" for suffix, name in PROTOCOLS.items()]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the pages, or with --check tell which are stale."""
    pages = {"cli.md": render_commands(), "settings.md": render_settings(), "coverage.md": render_coverage()}
    if "--check" not in argv:
        OUT.mkdir(parents=True, exist_ok=True)
        for name, content in pages.items():
            (OUT / name).write_text(content, encoding="utf-8")
        return 0
    stale = [
        f"docs/reference/{name}"
        for name, content in pages.items()
        if not (OUT / name).exists() or (OUT / name).read_text(encoding="utf-8") != content
    ]
    if stale:
        sys.stderr.write(f"stale, run `make docs`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
