"""A `spanreplay` command to invoke, and a directory of recordings for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spanreplay.cli.app import app

Invoke = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def data_dir(here: Path) -> Path:
    """The directory that every command finds by default: .spanreplay/ here."""
    return here / ".spanreplay"


@pytest.fixture
def spanreplay(here: Path) -> Invoke:
    """Invoke a command: spanreplay("ls", "--json")."""
    runner = CliRunner()

    def invoke(*arguments: str, **options: Any) -> Result:
        return runner.invoke(app, list(arguments), prog_name="spanreplay", **options)

    return invoke
