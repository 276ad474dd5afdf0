"""Headless Chromium, to view Phoenix as a user does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """Return the path of Chromium, or ''."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


@contextmanager
def open_page(profile: Path) -> Iterator[Any]:
    """Open a Playwright page in its own Chromium; requests to anything but loopback fail."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile),
            executable_path=find_chromium(),
            headless=True,
            args=list(_FLAGS),
            viewport={"width": 1600, "height": 1100},
        )
        try:
            yield context.pages[0] if context.pages else context.new_page()
        finally:
            context.close()
