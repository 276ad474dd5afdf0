"""Verdicts to report: the committed ones, and one in which every text is an attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict

GOLDEN = Path(__file__).with_name("golden")
ATTACK = (
    "</pre></script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    " ]]> %0A::error::x\n::warning::y [a](http://evil.test) `|` \ud800 \uffff \x1b[2J"
)


@pytest.fixture(params=sorted(p.stem for p in GOLDEN.glob("*.json")))
def case(request: pytest.FixtureRequest) -> str:
    """The name of a committed verdict."""
    return str(request.param)


@pytest.fixture
def verdict(case: str) -> Verdict:
    """That verdict."""
    return parse((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))


@pytest.fixture
def attack() -> Verdict:
    """A diverged verdict in which all text that a recording or an agent controls is hostile."""
    divergence: dict[str, Any] = {
        **dict.fromkeys(("kind", "boundary", "lane", "message", "cause", "hint"), ATTACK),
        "code": "a b,:x].py\x1b:3 " + ATTACK,
        "diff": [{"path": ATTACK, "recorded": ATTACK, "now": {ATTACK: [ATTACK]}}],
    }
    found = {
        "schema": "divergence/1",
        "verdict": "diverged",
        "run_id": "0" * 32,
        "app": ATTACK,
        "counts": {"recorded": 2, "served": 1, ATTACK: 1},
        "divergences": [divergence, {**divergence, "downstream": True}, divergence],
        "reasons": [ATTACK],
        "error": ATTACK,
        "hint": ATTACK,
        "stdout": {"compared": True, "equal": False, "diff": ATTACK},
        "exit": {"recorded": 0, "now": 1},
        "tokens": {},
        "sockets_denied": [ATTACK],
        "plan": {"on_change": "serve"},
    }
    return parse(json.dumps(found))
