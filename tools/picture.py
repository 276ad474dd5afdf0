"""Draws docs/terminal.svg: the README's picture, from commands that are really run while it is drawn.

PYTHONPATH=tests .venv/bin/python tools/picture.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from support.provider import Provider

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "terminal.svg"
COLUMNS = 118
BIN = Path(sys.executable).parent

AGENT = """\
import json
import openai
import spanreplay

ask = 'use tool place_order with {"symbol": "ACME", "shares": 1000}'
schema = {"type": "object", "properties": {"symbol": {"type": "string"}, "shares": {"type": "integer"}}}
tools = [{"type": "function", "function": {"name": "place_order", "parameters": schema}}]


@spanreplay.boundary("tool", name="place_order", effect="irreversible")
def place_order(symbol, shares):
    return f"sold {shares:,} {symbol} = ${shares * 190:,}"


answer = openai.OpenAI().chat.completions.create(
    model="gpt-x", messages=[{"role": "user", "content": ask}], tools=tools
)
order = json.loads(answer.choices[0].message.tool_calls[0].function.arguments)
print(place_order(**order))
"""
FIX = 'order["shares"] = min(order["shares"], 1000 // 190)\n'

TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Screen:
    """A terminal that remembers what was typed into it and what came out."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"))  # noqa: SIM115

    def type(self, command: str, note: str = "") -> None:
        """Run one command and keep what it printed."""
        line = Text.assemble(("$ ", "bold green"), (command, "bold"), (f"  # {note}" if note else "", "dim"))
        self._console.print(line)
        done = subprocess.run(
            ["bash", "-c", f"{command} 2>&1"],
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        self._console.print(Text.from_ansi(done.stdout.rstrip()), soft_wrap=False)
        self._console.print()

    def draw(self) -> str:
        """The screen as SVG."""
        return self._console.export_svg(title="spanreplay", code_format=TEMPLATE, unique_id="t", font_aspect_ratio=0.6)


def main() -> None:
    """Record an agent, stop its provider, replay it, change it, replay it again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT)
        with Provider() as provider:
            environ = {
                **provider.environ(),
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "HOME": name,
                "FORCE_COLOR": "1",
                "COLUMNS": str(COLUMNS),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            screen = Screen(folder, environ)
            screen.type("opentelemetry-instrument python agent.py")
        screen.type("spanreplay replay latest -- python agent.py", "the model is switched off by now")
        (folder / "agent.py").write_text(AGENT.replace("print(place_order", FIX + "print(place_order"))
        screen.type("spanreplay replay latest -- python agent.py", "now with a cap on the order")
    OUT.write_text(screen.draw(), encoding="utf-8")
    sys.stderr.write(f"wrote {OUT.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
