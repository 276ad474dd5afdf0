"""Starts spanreplay in the agent's Python before anything of the agent's runs.

Does what `opentelemetry-instrument` does, without a process of its own, and closes its one hole: OpenTelemetry logs
an exception of its set-up and lets the program run, which in a replay would mean that it runs live.
It is imported by whatever Python the agent uses, so it needs nothing but the standard library.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- what is not imported costs no time
_EXIT_NOT_REPLAYED = 3
_EXPORTERS = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")


def _start() -> None:
    forks = os.environ.pop("SPANREPLAY_REPLAY_FORKS", "")
    if forks:
        from spanreplay.activate import prepared

        prepared.fork_for_each(int(forks))
    path = os.environ.get("PYTHONPATH", "")
    # Helpers that are started while we set up must not set up again.
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in path.split(os.pathsep) if p and p != _HERE)
    # Without an exporter, OpenTelemetry's own configuration fails before spanreplay runs if a distro is installed.
    # Only until then: other tools read these variables too (`none` switches ddtrace off).
    unnamed = [name for name in _EXPORTERS if not os.environ.get(name, "").strip()]
    before = {name: os.environ.get(name) for name in unnamed}
    os.environ.update(dict.fromkeys(unnamed, "none"))
    try:
        from opentelemetry.instrumentation.auto_instrumentation import initialize

        initialize()
        if "spanreplay.activate.auto" not in sys.modules:
            import spanreplay

            raise RuntimeError(f"OpenTelemetry did not load {spanreplay.__name__} from {spanreplay.__file__}")
        _stand_for_recorded()
    finally:
        os.environ["PYTHONPATH"] = path
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stand_for_recorded() -> None:
    """Name the file that this module had when recorded: programs look at all loaded modules, to reload changed ones."""
    from opentelemetry.instrumentation import auto_instrumentation

    file = os.path.join(os.path.dirname(auto_instrumentation.__file__), "sitecustomize.py")  # noqa: PTH118, PTH120 -- as above
    globals()["__file__"] = file
    if __spec__ is not None:
        __spec__.origin = file


def _main() -> None:
    mode = os.environ.get("SPANREPLAY_MODE", "record")
    try:
        _start()
    except Exception as exc:  # noqa: BLE001 -- recording never breaks the agent, a replay never goes live
        if mode == "replay":
            sys.stderr.write(
                f"error: {sys.executable} cannot replay, so nothing was run: {exc}\n"
                "hint: install spanreplay into the Python that runs the agent, or name that Python in CMD\n"
            )
            sys.stderr.flush()
            os._exit(_EXIT_NOT_REPLAYED)
        if mode == "record":
            sys.stderr.write(f"spanreplay: {sys.executable} does not record: {exc}\n")


_main()
