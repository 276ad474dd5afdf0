"""Make a recording of a cassette: its exchanges pass through the code that records HTTP calls, redaction included.

What a cassette lacks stays out of the recording, and its only hole says so. A replay is therefore never `identical`:
the requests are compared, and whatever else the program does is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from spanreplay.model import attributes as names
from spanreplay.model import config, ids
from spanreplay.model.call import IMPORTED, Outcome
from spanreplay.model.errors import SpanreplayError
from spanreplay.model.levels import CALLS
from spanreplay.recording.cassettes import Cassette, Interaction
from spanreplay.runtime.run import Run, active_run, set_process_run
from spanreplay.runtime.wire.http_call import HttpCall, begin_call
from spanreplay.runtime.wire.http_reply import HttpReply

if TYPE_CHECKING:
    from spanreplay.recording.spool import SpoolWriter

__all__ = ["LACKS", "Imported", "record_cassette"]

LACKS: Final = (
    "imported from a cassette: output, exit status, clock, random values, environment, files, calls other than HTTP "
    "and the order of concurrent requests were not recorded, so they are not compared"
)
HOPS_MAX: Final = 30
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SEE_OTHER: Final = ("GET", "HEAD")


@dataclass(frozen=True)
class Imported:
    """The recording of a cassette as the content of a `.replay` file."""

    run_id: str
    content: bytes
    calls: int
    left_out: int
    """Requests of other tools' telemetry: a replay answers those itself."""
    holes: tuple[str, ...]
    """Why some responses can't be served."""


def record_cassette(cassette: Cassette, name: str) -> Imported:
    """Record the exchanges of a cassette as a run of the agent `name`. Raises: SpanreplayError if that fails."""
    from spanreplay.recording.spool import SpoolCatalog, SpoolWriter

    if active_run() is not None:
        raise SpanreplayError("a cassette can't be imported in a process that is recorded or replayed")
    with tempfile.TemporaryDirectory(prefix="spanreplay-") as folder:
        run_id = ids.new_run_id()
        writer = SpoolWriter(Path(folder), run_id, fsync="never", bytes_max=config.SPOOL_BYTES_MAX)
        run = _build_run(name, run_id, writer, cassette)
        set_process_run(run)
        try:
            made = [_record(chain) for chain in _chains(cassette.interactions)]
            run.hole(LACKS)
            run.finish(Outcome.OK)
        finally:
            set_process_run(None)
            writer.close()
        if not any(made):
            raise SpanreplayError(f"{name} has no request to serve", hint="requests of telemetry are not imported")
        catalog = SpoolCatalog(Path(folder))
        holes = tuple(each for each in catalog.load(run_id).completeness().reasons if each != LACKS)
        return Imported(run_id, catalog.export(run_id), sum(made), made.count(False), holes)


def _build_run(name: str, run_id: str, writer: SpoolWriter, cassette: Cassette) -> Run:
    from opentelemetry.sdk.resources import Resource

    from spanreplay.activate.redactors import build_redactor
    from spanreplay.recording.spool.directory import prepare_directory
    from spanreplay.recording.spool.processor import SpoolSpanProcessor
    from spanreplay.redact.processor import RedactingSpanProcessor
    from spanreplay.runtime.emit import Emitter

    data_dir = config.read_data_dir()
    prepare_directory(data_dir)  # of the redaction key
    redactor = build_redactor(data_dir)
    resource = Resource({names.RUN_ID: run_id, names.APP: name, names.PROJECT: name})
    chain = RedactingSpanProcessor(redactor, [SpoolSpanProcessor(writer)], run_resource=resource)
    return Run(
        app=name,
        run_id=run_id,
        emitter=Emitter([chain], resource),
        redactor=redactor,
        environment={IMPORTED: cassette.tool},
        level=CALLS,
    )


def _chains(interactions: Sequence[Interaction]) -> Iterator[list[Interaction]]:
    """Group the exchanges into calls: a client that follows redirects makes one call, the cassette one entry each."""
    chain: list[Interaction] = []
    for each in interactions:
        if chain and not _follows(chain[-1], each, len(chain)):
            yield chain
            chain = []
        chain.append(each)
    if chain:
        yield chain


def _follows(before: Interaction, after: Interaction, length: int) -> bool:
    """Whether an exchange is where the response of the one before it redirects to."""
    if before.status not in _REDIRECTS or length > HOPS_MAX or after.method not in (before.method, *_SEE_OTHER):
        return False
    location = next((value for name, value in before.reply_headers if name.lower() == "location"), "")
    try:
        target = urljoin(before.url, location)
    except ValueError:
        return False
    return bool(location) and target.partition("#")[0] == after.url.partition("#")[0]


def _record(chain: Sequence[Interaction]) -> bool:
    """Record one call with its redirects; False if such a request is not recorded."""
    first = chain[0]
    call = begin_call(first.method, first.url, first.headers, first.body)
    if call is None:
        return False
    if call.crossing is not None:
        call.crossing.code = ""  # the place in this process says nothing about who made the request
        if len(chain) > 1:  # some clients make a call for each hop: for these, the rest of the chain is one too
            with call.crossing:
                _record(chain[1:])
    for each in chain:
        _answer(call, each, is_redirected=len(chain) > 1)
    call.returned()
    return True


def _answer(call: HttpCall, interaction: Interaction, *, is_redirected: bool) -> None:
    reply = HttpReply(
        status=interaction.status,
        reason=interaction.reason,
        http_version=interaction.http_version,
        headers=list(interaction.reply_headers),
        url=interaction.url,
    )
    if is_redirected:
        reply.extra["url"] = interaction.url
    body = call.answered(reply)
    body.keep(interaction.reply_body)
    body.finish("complete", is_alone=False)
