"""Entry points for `opentelemetry-instrument`: `pre` installs, `post` reports.

Recording never breaks the agent: any error here is logged once. Replay is the opposite: if it can't be set up, the
process ends with status 3, because OpenTelemetry swallows exceptions of `pre` and would let the agent run live.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanreplay.model import config, guard
from spanreplay.model.here import BOOT_PARTS, PACKAGE

if TYPE_CHECKING:
    from spanreplay.activate.install import Installation
    from spanreplay.seams.telemetry.instrumentors import Instrumentors

logger = logging.getLogger(__name__)
EXIT_REPLAY_FAILED = 3
_leave = os._exit  # the unpatched function; the one an installation patches would write a verdict
_installation: Installation | None = None
_instrumentors: Instrumentors | None = None


def pre_instrument(**kwargs: Any) -> None:
    """Install before any library loads (entry point `opentelemetry_pre_instrument`)."""
    mode = config.read_setting("SPANREPLAY_MODE")
    if mode == "off":
        return
    guard.guarded("keeping instrumentors quiet", _keep_instrumentors_quiet)
    if mode == "replay":
        _install_replay()
        return
    guard.guarded("installation", _install, mode)


def _keep_instrumentors_quiet() -> None:
    global _instrumentors
    from spanreplay.runtime.patches import Patches
    from spanreplay.seams.telemetry.instrumentors import Instrumentors

    if not os.environ.get("SPANREPLAY_DOCTOR"):  # the doctor reports what doesn't work
        _instrumentors = Instrumentors()
        _instrumentors.install(Patches())


def _install(mode: str) -> None:
    global _installation
    from spanreplay.activate.install import Installation
    from spanreplay.seams.telemetry import providers

    installation = Installation(mode)
    installation.install()
    if mode == "replay" and not installation.is_started_by_us:
        _show_recorded_starter()
    if _instrumentors is not None and installation.is_started_by_us:
        # Without spanreplay the command would load no instrumentors
        providers.watch_new_providers(installation.patches, _instrumentors.take_out_unasked)
    _installation = installation
    atexit.register(_finish)


def _show_recorded_starter() -> None:
    """Replace our folder on the module path by OpenTelemetry's, which the recorded agent saw."""
    from opentelemetry.instrumentation import auto_instrumentation

    ours, recorded = str(Path(PACKAGE, *BOOT_PARTS).resolve()), str(Path(auto_instrumentation.__file__).parent)
    sys.path[:] = [recorded if each == ours else each for each in sys.path]


def _install_replay() -> None:
    try:
        _refuse_children()
        _install("replay")
    except BaseException as exc:  # noqa: BLE001 -- fail closed, whatever it is
        hint = getattr(exc, "hint", "")
        guard.write_stderr(f"error: the replay can't be set up: {exc}" + (f"\nhint: {hint}" if hint else ""))
        _report_failure(exc)
        _leave(EXIT_REPLAY_FAILED)


def _refuse_children() -> None:
    from spanreplay.model.errors import ConfigError
    from spanreplay.runtime.processes import ENVIRONMENT

    owner = config.read_setting("SPANREPLAY_REPLAY_PID")
    if owner and owner != str(os.getpid()) and ENVIRONMENT not in os.environ:
        raise ConfigError(
            "a Python subprocess of a replayed process can't be replayed and must not run live",
            hint="declare the call that starts it a boundary: @spanreplay.boundary(...)",
        )
    os.environ["SPANREPLAY_REPLAY_PID"] = str(os.getpid())


def _report_failure(exc: BaseException) -> None:
    path = config.read_setting("SPANREPLAY_REPLAY_REPORT")
    if not path:
        return
    report = {"schema": "divergence/1", "verdict": "error", "error": str(exc), "hint": getattr(exc, "hint", "")}
    try:
        Path(path).write_text(json.dumps(report), encoding="utf-8")
    except OSError as failure:
        guard.write_stderr(f"error: can't write {path}: {failure.strerror}")


def _finish() -> None:
    if _installation is not None:
        guard.guarded("the end of the run", _installation.finish)
        if _installation.seams is not None and _installation.session is None:
            guard.guarded("letting go of libraries", _installation.seams.let_go)


def post_instrument(**kwargs: Any) -> None:
    """Report once what prevents a run from being recorded (entry point `opentelemetry_post_instrument`)."""
    if _instrumentors is not None:
        _instrumentors.loaded()
    if _installation is not None:
        guard.guarded("doctor line", _installation.post)
        # What OpenTelemetry and we have loaded stays until the end. Each full collection of the agent would look
        # through all of it again: twenty times as many objects as in a small program.
        guard.guarded("sparing the garbage collector", gc.freeze)
