"""Checks the contract of every row of the seam table in one process: `python -m support.seam_contract SEAM ...`.

A row's case is tests/agents/seams/<its name>.py, the smallest program that uses the library, with
    use()      crosses the boundary CALLS times (default 1) and returns something comparable
    fail()     crosses it FAILING_CALLS times (default 1), to a body that raises PROBLEM (transports: to a closed
               port, at $NOBODY); optional
    abandon()  starts to read a stream and abandons it; optional
    KIND       the only kind of call that is counted; optional
    BODIES     a list to which each body that runs appends; optional: a transport's body is the server at $URL
    WITH       names of other rows that the case needs; optional
$PORT is free for the case's own server, $FOLDER is an empty folder.
The functions may be coroutine functions. The case is reloaded for each phase, after the library and the seam.
Standard output: {seam: {promise: "" or the problem}}; a promise that can't be checked is absent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from spanreplay.model.call import Recording
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.verdict import build_verdict
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run
from spanreplay.seams.machine import reads_and_files
from spanreplay.seams.table import SEAMS, Seam
from support.in_process import MemoryProcessor, Seams, inside, make_run
from support.ports import free_port
from support.web_server import WebServer

CASES: Final = Path(__file__).resolve().parents[1] / "agents" / "seams"
TIMEOUT_S: Final = 600
PROMISES: Final = ("fits", "records", "exception", "replays", "suppressed", "abandoned", "restores")
CHAIN_MAX: Final = 10
_MISSING: Final = object()


class Case:
    """One loading of a case."""

    def __init__(self, seam: Seam) -> None:
        spec = spec_from_file_location("seam_case", CASES / f"{seam.name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[module.__name__] = module  # like a program's module, so that its classes are found
        spec.loader.exec_module(module)
        self._globals = vars(module)

    def __contains__(self, name: str) -> bool:
        return name in self._globals

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name in the case."""
        return self._globals.get(name, default)

    def call(self, name: str) -> Any:
        """Run one of its functions to completion."""
        function = self._globals[name]
        return asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()

    def fail(self) -> list[Any]:
        """Return the outcome of `fail`: its value, or [type, arguments, is PROBLEM] per exception of the chain."""
        try:
            value = self.call("fail")
        except (Exception, ReplayMiss) as exc:  # noqa: BLE001 -- it is inspected
            return list(_iter_chain(exc, self.get("PROBLEM")))
        return [["returned", repr(value), value is self.get("PROBLEM")]]


def _iter_chain(exc: BaseException | None, problem: Any) -> Iterator[list[Any]]:
    for _ in range(CHAIN_MAX):
        if exc is None:
            return
        yield [f"{type(exc).__module__}.{type(exc).__qualname__}", repr(exc.args), exc is problem]
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)


def _find_modules(seam: Seam) -> Seams:
    found = []
    for trigger in seam.triggers:
        try:
            module = import_module(trigger)
        except ImportError:
            continue
        found.append((import_module(seam.implementation).install, module))
    return tuple(found)


def check_fit(modules: Seams) -> Iterator[tuple[str, str]]:
    """Check that each target exists and is patched, and is afterwards the identical object again."""
    patches = Patches()
    for install, module in modules:
        install(module, patches)
    first: dict[Any, Any] = {}
    for owner, name, old in patches._undo:
        first.setdefault((id(owner), name), (owner, name, old))
    patched = [n for o, n, old in first.values() if vars(o).get(n, _MISSING) is not old]
    yield "fits", "" if patched and len(patched) == len(first) else f"patched {patched} of {len(first)} targets"
    patches.undo()
    kept = [n for o, n, old in first.values() if vars(o).get(n, _MISSING) is not old and n in vars(o)]
    yield "restores", "" if not kept else f"not restored: {kept}"


@contextmanager
def _run(modules: Seams, memory: MemoryProcessor, session: Session | None = None) -> Iterator[Run]:
    run = make_run(memory, session)
    reads_and_files.attach_reads(run)
    reads_and_files.attach_files(run)
    with inside(run, modules):
        yield run
        run.finish()


def _record(modules: Seams, use: Callable[[Run], Any]) -> tuple[Any, Recording]:
    memory = MemoryProcessor()
    with _run(modules, memory) as run:
        result = use(run)
    return result, memory.recording(run.run_id)


def _replay(modules: Seams, recording: Recording, use: Callable[[Run], Any]) -> tuple[Any, Recording, dict[str, Any]]:
    memory = MemoryProcessor()
    session = Session(recording, Plan())
    with _run(modules, memory, session) as run:
        result = use(run)
    verdict = build_verdict(session, run, stdout={}, exit_status=None, ended_ns=run.start_ns)
    return result, memory.recording(run.run_id), verdict


def _calls(recording: Recording) -> list[Any]:
    return sorted((c.boundary, c.lane, c.index, c.key, c.request, c.response, c.outcome) for c in recording.calls)


def check_seam(seam: Seam, web: WebServer) -> Iterator[tuple[str, str]]:
    """Yield each promise that can be checked for a row, and its problem ('' for none)."""
    modules = _find_modules(seam)
    yield from check_fit(modules)
    if not (CASES / f"{seam.name}.py").exists():
        return
    plain = Case(seam)
    modules += tuple(m for other in SEAMS if other.name in plain.get("WITH", ()) for m in _find_modules(other))
    plain.call("use")
    failing = plain.fail() if "fail" in plain else None

    def use(run: Run) -> tuple[Any, Any, int, Case]:
        case = Case(seam)
        return case.call("use"), case.fail() if failing else None, len(case.get("BODIES", ())), case

    (value, failed, bodies, case), recording = _record(modules, use)
    wanted = plain.get("CALLS", 1) + (plain.get("FAILING_CALLS", 1) if failing else 0)
    complete = recording.completeness()
    counted = [c for c in recording.calls if plain.get("KIND") in (None, c.kind)]
    is_right = len(counted) == wanted and complete.is_complete and bodies == len(plain.get("BODIES", ()))
    yield "records", "" if is_right else f"{_calls(recording)} {complete.reasons} {bodies}"
    if failing is not None:
        yield "exception", "" if failed == failing else f"{failed} recorded, {failing} without us"
    yield "suppressed", _check_suppressed(seam, modules)
    if "abandon" in plain:
        yield "abandoned", _check_abandoned(seam, modules)
    web.stop()
    (value2, failed2, bodies2, _), again, verdict = _replay(modules, recording, use)
    wrong = {
        f"{verdict['verdict']}: {verdict['divergences']}": verdict["verdict"] != "identical",
        f"{value2!r} is not {value!r}": value2 != value,
        f"{bodies2} bodies ran": "BODIES" in case and bodies2,
        "its records are others": _calls(again) != _calls(recording),
        # Only the outermost exception, and not its identity: a replay has neither its chain nor the same object
        f"{failed2} is not {failed}": failing is not None and failed2[0][:2] != failed[0][:2],
    }
    yield "replays", "; ".join(text for text, is_wrong in wrong.items() if is_wrong)


def _check_suppressed(seam: Seam, modules: Seams) -> str:
    with _run(modules, MemoryProcessor()) as run:
        case = Case(seam)
        with suppress_instrumentation():
            case.call("use")
        return "" if not run.has_calls else "something was recorded"


def _check_abandoned(seam: Seam, modules: Seams) -> str:
    def use(run: Run) -> None:
        Case(seam).call("abandon")
        gc.collect()

    _, recording = _record(modules, use)
    still_open = [c.boundary for c in recording.calls if c.outcome == "open"]
    reasons = recording.completeness().reasons
    return "" if recording.calls and not still_open and not reasons else f"open: {still_open} {reasons}"


def main(names: list[str]) -> None:
    """Check the rows of these names and print the results."""
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    warnings.simplefilter("ignore")  # other projects' deprecations
    os.environ.update(SPANREPLAY_RECORD_CLOCK="true", NOBODY="http://127.0.0.1:9")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's output isn't part of the answer
    found: dict[str, dict[str, str]] = {}
    for seam in SEAMS:
        if seam.name not in names:
            continue
        found[seam.name] = {}
        with WebServer() as web, tempfile.TemporaryDirectory() as folder:
            os.environ.update(URL=web.url, PORT=str(free_port()), FOLDER=folder)
            try:
                found[seam.name].update(check_seam(seam, web))
            except (Exception, ReplayMiss):  # noqa: BLE001 -- one row's failure must not affect the others
                found[seam.name]["check"] = traceback.format_exc(limit=-6)
    json.dump(found, out)
    out.flush()
    os._exit(0)  # don't wait for threads that a framework leaves behind


if __name__ == "__main__":
    main(sys.argv[1:])
