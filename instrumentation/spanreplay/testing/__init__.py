"""The pytest plug-in, mocked models, and assertions over recordings.

from spanreplay.testing import Call, assert_trajectory
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanreplay.testing.behaviour import Shift, assert_behaves_like, find_shifts
    from spanreplay.testing.calibration import Agreement, calibrate_judge
    from spanreplay.testing.judge import Judgement, ask_judge, assert_judge
    from spanreplay.testing.made_calls import MadeCall
    from spanreplay.testing.matching import ANYTHING, Call, Expected
    from spanreplay.testing.trajectory import assert_trajectory

__all__ = [
    "ANYTHING",
    "Agreement",
    "Call",
    "Expected",
    "Judgement",
    "MadeCall",
    "Shift",
    "ask_judge",
    "assert_behaves_like",
    "assert_judge",
    "assert_trajectory",
    "calibrate_judge",
    "find_shifts",
]

_LAZY = {
    "ANYTHING": "spanreplay.testing.matching",
    "Agreement": "spanreplay.testing.calibration",
    "Judgement": "spanreplay.testing.judge",
    "ask_judge": "spanreplay.testing.judge",
    "assert_judge": "spanreplay.testing.judge",
    "calibrate_judge": "spanreplay.testing.calibration",
    "Call": "spanreplay.testing.matching",
    "Expected": "spanreplay.testing.matching",
    "MadeCall": "spanreplay.testing.made_calls",
    "Shift": "spanreplay.testing.behaviour",
    "assert_behaves_like": "spanreplay.testing.behaviour",
    "assert_trajectory": "spanreplay.testing.trajectory",
    "find_shifts": "spanreplay.testing.behaviour",
}
"""Public name → its module, imported at first use: pytest loads this package in every run."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
