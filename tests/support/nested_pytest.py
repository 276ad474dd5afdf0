"""pytest in a test, as a process of its own: which plug-ins it loads beside ours."""

from __future__ import annotations

from typing import Final


def _without(*names: str) -> tuple[str, ...]:
    return tuple(part for name in names for part in ("-p", f"no:{name}"))


_OF_SDKS: Final = ("phoenix", "langsmith_plugin", "mockllm")
OURS_AND_RUNNERS: Final = _without(*_OF_SDKS)
"""Those that run coroutines, and hypothesis: a user's pytest."""
OURS: Final = _without(*_OF_SDKS, "anyio", "asyncio", "hypothesispytest")
"""None of those: each would take a second to load, and a test starts pytest up to seven times."""
