"""The run that started this process: passed as W3C baggage in the environment to a process that records itself.

Such a process is a run of its own. The run that started it has recorded its output, so a replay of that run does not
start it. (Processes of `multiprocessing` are part of the run instead; see `process_group`.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spanreplay.recording.catalog import PARENT

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

_VARIABLE: Final = "BAGGAGE"
_RUN: Final = "spanreplay.run_id"
_SEQ: Final = "spanreplay.seq"
_MARK: Final = str(Path("opentelemetry", "instrumentation", "auto_instrumentation"))
"""Part of the module path of a process that records itself."""
_ID_CHARACTERS: Final = 32


def hand_down(crossing: Crossing, environ: Mapping[Any, Any] | None) -> dict[Any, Any] | None:
    """The environment for a process that this call starts; None if it is to stay unchanged."""
    given = os.environ if environ is None else environ
    if _MARK not in str(given.get("PYTHONPATH", "")):
        return None
    from opentelemetry import baggage
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context

    propagator, carrier = W3CBaggagePropagator(), {"baggage": str(given.get(_VARIABLE, ""))}
    context = propagator.extract(carrier, context=Context())
    context = baggage.set_baggage(_RUN, crossing.run.run_id, context)
    context = baggage.set_baggage(_SEQ, str(crossing.seq), context)
    propagator.inject(carrier, context=context)
    return {**given, _VARIABLE: carrier["baggage"]}


def read_parent(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The root environment's member that names the run which started this process; {} without one."""
    text = environ.get(_VARIABLE, "")
    if _RUN not in text:
        return {}
    members = dict(member.strip().partition("=")[::2] for member in text.split(","))
    run_id, seq = members.get(_RUN, ""), members.get(_SEQ, "")
    if len(run_id) != _ID_CHARACTERS or set(run_id) - set("0123456789abcdef") or not seq.isdecimal():
        return {}
    return {PARENT: {"run_id": run_id, "seq": int(seq)}}
