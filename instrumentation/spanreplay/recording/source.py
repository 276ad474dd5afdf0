"""Where a replay's recording comes from: a `.replay` or spool file, a spool directory, or the service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, RunNotFound
from spanreplay.recording.catalog import Catalog, RunQuery, find_newest


def open_catalog(environ: Mapping[str, str] = os.environ) -> Catalog:
    """Open the service at SPANREPLAY_ENDPOINT if set, else the local directory. Raises: ConfigError, ServiceError."""
    endpoint = config.read_setting("SPANREPLAY_ENDPOINT", environ)
    if endpoint:
        from spanreplay.recording.remote.client import ServiceCatalog

        return ServiceCatalog(endpoint, config.read_setting("SPANREPLAY_TOKEN", environ))
    from spanreplay.recording.spool import SpoolCatalog

    return SpoolCatalog(config.read_data_dir(environ))


def load_newest(app: str, environ: Mapping[str, str] = os.environ) -> Recording:
    """Load the newest recording of an agent, replays excluded. Raises: RunNotFound, ServiceError."""
    catalog = open_catalog(environ)
    try:
        found = find_newest(catalog, RunQuery(app=app))
        if found is None:
            raise RunNotFound(f"no recorded run of {app!r} here", hint="spanreplay ls lists the runs")
        return catalog.load(found.root.run_id)
    finally:
        catalog.close()


def load_beside(source: str, run_id: str, environ: Mapping[str, str] = os.environ) -> Recording:
    """Load a run that a recording refers to: inside the recording's file, `<run_id>.replay` beside it, or by its id.

    Raises: SourceError, ServiceError.
    """
    file = Path(source)
    if source and file.is_file():
        from spanreplay.recording.bundle import load_inner

        inner = load_inner(file, run_id)
        if inner is not None:
            return inner
    path = file.parent / f"{run_id}.replay"
    return load_source(str(path) if source and path.is_file() else run_id, environ)


def load_source(source: str, environ: Mapping[str, str] = os.environ) -> Recording:
    """Load the recording that `source` names: a file's path, or a run id in the catalog.

    Raises: ConfigError if it is empty; SourceError and ServiceError from the file or the catalog.
    """
    if not source:
        raise ConfigError("nothing to replay: SPANREPLAY_REPLAY_SOURCE is empty")
    path = Path(source)
    if path.suffix in (".replay", ".jsonl", ".spool") or path.is_file():
        from spanreplay.recording.bundle import load_file

        return load_file(path)
    catalog = open_catalog(environ)
    try:
        return catalog.load(source)
    finally:
        catalog.close()
