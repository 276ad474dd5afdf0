"""A client of which one module is not as expected is not covered at all."""

from __future__ import annotations

import sys

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.brokers.covered import covers, is_covered


def test_u1_one_module_that_does_not_fit_turns_the_client_off() -> None:
    """Its other modules may be patched already: their patches then do nothing."""

    @covers("a client of this test")
    def install(module: object, patches: Patches) -> None:
        if module is sys:
            raise AttributeError("not as expected")

    install(pytest, Patches())
    assert is_covered("a client of this test")
    with pytest.raises(AttributeError):
        install(sys, Patches())
    assert not is_covered("a client of this test")
