"""Compares the variables that a program is given with the recorded ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from spanreplay.replayer.divergence import Diff
from spanreplay.runtime.process.variables import ABSENT, INHERITED, ONLY, SET, WITHOUT, clean_environ, find_differing


def compare_variables(
    then: Mapping[str, Any], now: Mapping[str, Any], is_of_file: Callable[[str], bool] = lambda name: False
) -> tuple[list[Diff], list[Diff]]:
    """Return (what the agent passes differently, what this machine may have changed).

    `is_of_file`: whether the value of a variable is that of a `.env` file here.
    """
    here = clean_environ(os.environ)
    changed: list[Diff] = []
    machine: list[Diff] = []
    old, new = then.get(SET) or {}, now.get(SET) or {}
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, INHERITED), new.get(name, INHERITED)
        if before == after:
            continue
        is_inherited_here = after == INHERITED and here.get(name) == before
        is_set_here = before == INHERITED and is_of_file(name)
        (machine if is_inherited_here or is_set_here else changed).append(Diff(f"env.{name}", before, after))
    if (ONLY in then) != (ONLY in now):
        before, after = ("a few variables" if ONLY in each else INHERITED for each in (then, now))
        changed.append(Diff("env", before, after))
        return changed, machine
    for name in find_differing(then.get(ONLY), now.get(ONLY)):
        if name in old or name in new:
            continue
        if name in (then.get(ONLY) or ()):
            (changed if name in here else machine).append(Diff(f"env.{name}", INHERITED, ABSENT))
        else:
            changed.append(Diff(f"env.{name}", ABSENT, INHERITED))
    for name in find_differing(then.get(WITHOUT), now.get(WITHOUT)):
        is_dropped = name in (then.get(WITHOUT) or ())
        if is_dropped and name in here and now.get(ONLY) is None:
            changed.append(Diff(f"env.{name}", ABSENT, INHERITED))
        elif not is_dropped:
            machine.append(Diff(f"env.{name}", INHERITED, ABSENT))
    return changed, machine
