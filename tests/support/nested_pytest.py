"""pytest as a subprocess of a test: the plug-ins that it loads beside ours."""

from __future__ import annotations

from typing import Final


def _without(*names: str) -> tuple[str, ...]:
    return tuple(part for name in names for part in ("-p", f"no:{name}"))


_OF_SDKS: Final = ("phoenix", "langsmith_plugin", "mockllm")
OURS_AND_RUNNERS: Final = _without(*_OF_SDKS)
"""Also loads the plug-ins that run coroutines, and hypothesis, like a user's pytest."""
OURS: Final = _without(*_OF_SDKS, "anyio", "asyncio", "hypothesispytest")
"""Loads only ours: each other plug-in takes a second to load, and a test starts pytest up to seven times."""
