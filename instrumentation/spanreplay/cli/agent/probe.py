"""Print, as JSON, what a Python has installed. Runs as a script in that Python, which may lack all our packages."""

import importlib.util
import json
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

GROUPS = (
    "opentelemetry_distro",
    "opentelemetry_configurator",
    "opentelemetry_traces_exporter",
    "opentelemetry_pre_instrument",
    "opentelemetry_instrumentor",
)
PACKAGES = ("spanreplay", "opentelemetry-instrumentation", "opentelemetry-sdk")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _origin(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    return (spec.origin or "") if spec is not None else ""


def main() -> None:
    """Write one JSON object to standard output."""
    # The script's own folder is not on the agent's path.
    sys.path[:1] = [""]
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "packages": {package: _version(package) for package in PACKAGES},
        "groups": {group: sorted({point.name for point in entry_points(group=group)}) for group in GROUPS},
        "spanreplay_origin": _origin("spanreplay"),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
