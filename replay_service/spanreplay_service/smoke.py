"""`python -m spanreplay_service.smoke` records, sends, finds and replays one small run; `helm test` runs it.

It uses the collector at OTEL_EXPORTER_OTLP_ENDPOINT and the service at SPANREPLAY_ENDPOINT, with SPANREPLAY_TOKEN,
and writes its files below SPANREPLAY_DIR. The run stays in the store, as app `spanreplay-smoke`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import spanreplay
from spanreplay.model import config
from spanreplay.model.errors import ConfigError, RunNotFound, ServiceUnavailable, SpanreplayError

APP: Final = "spanreplay-smoke"
FIND_S_MAX: Final = 60.0
POLL_S: Final = 0.5


@spanreplay.boundary("tool", name="smoke.add")
def _add(left: int, right: int) -> int:
    return left + right


def run_smoke(say: Callable[[str], None]) -> None:
    """Run the smoke test; report each completed step to `say`. Raises: SpanreplayError at the first failure."""
    from spanreplay.recording.spool import read_target, ship_all

    target = read_target()
    if target is None or not config.read_setting("SPANREPLAY_ENDPOINT"):
        raise ConfigError("nothing to test", hint="set OTEL_EXPORTER_OTLP_ENDPOINT and SPANREPLAY_ENDPOINT")
    directory = config.read_data_dir()
    with spanreplay.record(name=APP, directory=directory) as recorded:
        total = _add(2, 3)
    say(f"recorded {recorded.run_id}")
    report = ship_all(directory, target, timeout_ms=int(FIND_S_MAX * 1000))
    if report.error or report.refused:
        raise ServiceUnavailable(f"{target.url} has not taken the run: {report.error or 'refused'}")
    say(f"{target.url} has acknowledged it")
    _wait_for(recorded.run_id)
    with spanreplay.replay(recorded.run_id) as session:
        again = _add(2, 3)
    verdict = session.verdict()
    if verdict["verdict"] != "identical" or again != total:
        raise SpanreplayError(f"the replay is {verdict['verdict']}, not identical")
    say("replayed: identical")


def _wait_for(run_id: str) -> None:
    """Return once the service has the run. Raises: RunNotFound, ServiceError."""
    from spanreplay.recording.remote.client import ServiceCatalog

    deadline_s = time.monotonic() + FIND_S_MAX
    endpoint, token = config.read_setting("SPANREPLAY_ENDPOINT"), config.read_setting("SPANREPLAY_TOKEN")
    with ServiceCatalog(endpoint, token=token) as catalog:
        while True:
            try:
                catalog.load(run_id)
            except RunNotFound:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)
            else:
                return


def main() -> int:
    """Run the smoke test and return the exit status: 0 on success."""
    try:
        run_smoke(lambda line: print(line, flush=True))  # noqa: T201 - output for `helm test --logs`
    except SpanreplayError as exc:
        sys.stderr.write(f"error: {exc}\n" + (f"hint: {exc.hint}\n" if exc.hint else ""))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
