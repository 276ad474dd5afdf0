"""The environment of a run: what else could have made it come out differently."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any, Final

_PACKED_REFS_BYTES_MAX: Final = 4 * 1024 * 1024
_PACKAGES: Final = (
    "anthropic",
    "httpx",
    "httpx2",
    "langchain-core",
    "langgraph",
    "mcp",
    "openai",
    "opentelemetry-sdk",
    "spanreplay",
)


def describe_environment(argv: list[str]) -> dict[str, Any]:
    """Code, interpreter and package versions of this process; the other moving parts are on the calls.

    Of the eight moving parts, sampler, prompt, retrieval, tools, model version and history are recorded on each
    call; the clock by the calls' times; the serving stack by the response's fingerprint and headers.
    """
    return {
        "argv": argv,
        "cwd": Path.cwd().name,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": sys.platform,
        "machine": platform.machine(),
        "git_sha": read_git_sha(Path.cwd()),
        "packages": _read_versions(),
    }


def _read_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_git_sha(directory: Path) -> str:
    """The commit that is checked out at or above a directory, read from files; '' if there is none."""
    for folder in (directory, *directory.parents):
        dot_git = folder / ".git"
        if not dot_git.exists():
            continue
        try:
            git_dir = dot_git
            if dot_git.is_file():
                git_dir = folder / dot_git.read_text().partition("gitdir:")[2].strip()
            return _read_head(git_dir)
        except OSError:
            return ""
    return ""


def _read_head(git_dir: Path) -> str:
    head = (git_dir / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    ref = head.partition(":")[2].strip()
    common = git_dir / "commondir"
    roots = [git_dir] + ([git_dir / common.read_text().strip()] if common.exists() else [])
    for root in roots:
        loose = root / ref
        if loose.exists():
            return loose.read_text().strip()
        packed = root / "packed-refs"
        if packed.exists() and packed.stat().st_size < _PACKED_REFS_BYTES_MAX:
            for line in packed.read_text().splitlines():
                sha, _, name = line.partition(" ")
                if name == ref:
                    return sha
    return ""
