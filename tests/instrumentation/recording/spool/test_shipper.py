"""The shipper: everything reaches the collector once, nothing is lost, and the agent never waits."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider

from spanreplay.model.config import SHIP_BATCH_BYTES_MAX
from spanreplay.recording.bundle import pack
from spanreplay.recording.spool import Shipper, SpoolCatalog, SpoolSpanProcessor, SpoolWriter, ship_all
from spanreplay.recording.spool import shipper as shipper_module
from spanreplay.recording.spool.courier import read_ack
from spanreplay.recording.spool.directory import ack_path, iter_spool_files
from spanreplay.recording.spool.frames import MAGIC, iter_frames
from spanreplay.recording.spool.target import target_of
from support import otlp_sink
from support.otlp_sink import OK, Answer, OtlpSink, Seen
from support.spool_tools import OTHER_RUN, RUN, call, calls, ids, leave, make_shipper, wait_until, whole_run

LONG_MS = 30_000


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A collector that accepts everything until configured otherwise."""
    with otlp_sink.serve() as running:
        yield running


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry within milliseconds."""
    monkeypatch.setattr(shipper_module, "SHIP_BACKOFF_MS", 1)


def _has_arrived(sink: OtlpSink, spans: int) -> bool:
    return len(sink.span_ids()) == spans


@pytest.mark.parametrize("keeps_alive", [True, False], ids=["keep_alive", "close_each_time"])
def test_appended_payloads_arrive(keeps_alive: bool, tmp_path: Path) -> None:
    """Each payload is delivered once, as OTLP/HTTP protobuf with gzip and the requested headers."""
    with otlp_sink.serve(keeps_alive=keeps_alive) as sink:
        target = target_of(sink.endpoint, headers={"X-Tenant": "a"}, token="t0k3n")
        shipper = Shipper(tmp_path, target, interval_ms=1)
        writer = SpoolWriter(tmp_path, RUN, to_ship=True)
        for seq in range(1, 21):
            assert writer.append(call(seq=seq))
            shipper.notify()
            wait_until(partial(_has_arrived, sink, seq), "the span to arrive")
        assert sink.span_ids() == ids(*range(1, 21))
        headers = sink.seen[0].headers
        assert sink.seen[0].path == "/v1/traces"
        assert {k: headers[k] for k in ("content-type", "content-encoding", "x-tenant", "authorization")} == {
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
            "x-tenant": "a",
            "authorization": "Bearer t0k3n",
        }
        writer.close()
        assert shipper.shutdown(LONG_MS)
        assert list(iter_spool_files(tmp_path)) == []
        assert shipper.report.payloads == 20


def test_provider_shutdown_delivers_and_cleans_up(sink: OtlpSink, tmp_path: Path) -> None:
    """The SDK's shutdown at exit leaves nothing in the spool."""
    provider = TracerProvider()
    provider.add_span_processor(SpoolSpanProcessor(SpoolWriter(tmp_path, RUN), make_shipper(tmp_path, sink.endpoint)))
    for _ in range(3):
        with provider.get_tracer("t").start_as_current_span("call"):
            pass
    provider.shutdown()
    assert len(sink.span_ids()) == 3
    assert list(iter_spool_files(tmp_path)) == []


@pytest.mark.usefixtures("quick_backoff")
def test_dead_collector_comes_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While nothing listens the spool keeps everything and says so once; afterwards all of it is delivered."""
    reserved = otlp_sink.reserve_port()
    shipper = make_shipper(tmp_path, otlp_sink.endpoint_of(reserved))
    writer = SpoolWriter(tmp_path, RUN, to_ship=True)
    for payload in calls(1, 2, 3):
        writer.append(payload)
        shipper.notify()
    assert not shipper.flush(LONG_MS)
    assert shipper.report.error.endswith("ConnectionRefusedError")
    with otlp_sink.serve(reserved) as sink:
        wait_until(lambda: sink.span_ids() == ids(1, 2, 3), "the spans to arrive without another notify")
        writer.close()
        assert shipper.shutdown(LONG_MS)
    assert [r.getMessage().split(", ")[0] for r in caplog.records] == ["spans wait in the spool"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_busy_collector_is_asked_again_after_what_it_says(status: int, tmp_path: Path, sink: OtlpSink) -> None:
    """Retry-After is honoured within the flush, and nothing is refused or lost."""
    answers = iter([Answer(status, {"Retry-After": "1"})])
    sink.answer = lambda seen: next(answers, OK)
    shipper = make_shipper(tmp_path, sink.endpoint)
    leave(tmp_path, calls(1, 2))
    assert shipper.flush(LONG_MS)
    assert (sink.span_ids(), len(sink.seen), shipper.report.refused) == (ids(1, 2), 2, 0)
    shipper.shutdown()


def test_flush_does_not_outwait_a_long_retry_after(tmp_path: Path, sink: OtlpSink) -> None:
    """A collector that asks for an hour is not asked again, and the flush ends without it."""
    sink.answer = lambda seen: Answer(503, {"Retry-After": "3600"})
    shipper = make_shipper(tmp_path, sink.endpoint)
    leave(tmp_path, calls(1))
    assert not shipper.flush(5_000)
    assert not shipper.flush(5_000)
    assert len(sink.seen) == 1
    shipper.shutdown()


def test_flush_of_a_hanging_collector_is_bounded(tmp_path: Path, sink: OtlpSink) -> None:
    """A collector that accepts and never answers delays the agent's exit by its exit timeout at most."""
    sink.answer = lambda seen: Answer(hangs=True)
    shipper = make_shipper(tmp_path, sink.endpoint)
    leave(tmp_path, calls(1))
    assert not shipper.shutdown(300)
    assert read_ack(next(iter_spool_files(tmp_path))) == 0


@pytest.mark.parametrize("status", [400, 413])
def test_refused_payload_is_set_aside_and_never_blocks(status: int, tmp_path: Path, sink: OtlpSink) -> None:
    """The one payload at fault goes to refused/; all others of its batch and file are delivered."""
    sink.answer = lambda seen: Answer(status) if 1007 in seen.span_ids() else OK
    shipper = make_shipper(tmp_path, sink.endpoint)
    leave(tmp_path, calls(*range(1, 21)))
    assert shipper.flush(LONG_MS)
    assert sink.span_ids() == ids(*(n for n in range(1, 21) if n != 7))
    assert shipper.report.refused == 1
    (aside,) = (tmp_path / "spool" / "refused").iterdir()
    assert list(iter_frames(aside)) == calls(7)
    assert aside.stat().st_mode & 0o777 == 0o600
    assert list(iter_spool_files(tmp_path)) == []
    shipper.shutdown()

    assert ship_all(tmp_path, target_of(sink.endpoint)).remaining == 1
    assert aside.exists()
    sink.answer = lambda seen: OK
    assert ship_all(tmp_path, target_of(sink.endpoint)).remaining == 0
    assert sorted(sink.span_ids()) == ids(*range(1, 21))
    assert not aside.exists()


@pytest.mark.usefixtures("quick_backoff")
def test_payload_that_breaks_the_collector_is_set_aside_after_some_tries(tmp_path: Path, sink: OtlpSink) -> None:
    """A lasting 500 for one payload neither loses it nor stops the others, in its file or another."""
    sink.answer = lambda seen: Answer(500) if 1002 in seen.span_ids() else OK
    shipper = make_shipper(tmp_path, sink.endpoint)
    leave(tmp_path, calls(1, 2, 3))
    leave(tmp_path, [call(OTHER_RUN, 9)], OTHER_RUN)
    shipper.notify()
    wait_until(lambda: set(sink.span_ids()) == set(ids(1, 3, 9)), "the other payloads to arrive")
    wait_until(lambda: list(iter_spool_files(tmp_path)) == [], "the files to be done")
    (aside,) = (tmp_path / "spool" / "refused").iterdir()
    assert list(iter_frames(aside)) == calls(2)
    shipper.shutdown()


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(
    "answer",
    [
        Answer(401),
        Answer(403),
        Answer(404),
        Answer(301, {"Location": "http://127.0.0.1:1/"}),
        Answer(503, {"Retry-After": "soon"}),
        Answer(is_garbage=True),
    ],
    ids=["401", "403", "404", "redirect", "odd_retry_after", "no_http"],
)
def test_misconfigured_collector_loses_nothing(
    answer: Answer, tmp_path: Path, sink: OtlpSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong address or token is reported once; everything is delivered when it is corrected."""
    sink.answer = lambda seen: answer
    shipper = make_shipper(tmp_path, sink.endpoint)
    writer = SpoolWriter(tmp_path, RUN)
    writer.append(call(seq=1))
    shipper.notify()
    wait_until(lambda: len(sink.seen) >= 3, "three tries")
    sink.answer = lambda seen: OK
    wait_until(lambda: sink.span_ids() == ids(1), "the span to arrive")
    assert len(caplog.records) == 1
    writer.close()
    shipper.shutdown()


def test_partly_rejected_batch_is_counted(tmp_path: Path, sink: OtlpSink, caplog: pytest.LogCaptureFixture) -> None:
    """Spans that the collector rejects inside an accepted batch are counted and reported."""
    reply = ExportTraceServiceResponse()
    reply.partial_success.rejected_spans = 2
    sink.answer = lambda seen: Answer(body=reply.SerializeToString())
    leave(tmp_path, calls(1, 2, 3))
    report = ship_all(tmp_path, target_of(sink.endpoint))
    assert (report.payloads, report.refused, report.files) == (3, 2, 1)
    assert "rejected 2 spans" in caplog.text


def test_batches_are_bounded_and_a_large_payload_goes_alone(tmp_path: Path, sink: OtlpSink) -> None:
    """No request holds more than the limit unless one payload alone does."""
    big = [call(seq=n, request="x" * 1_500_000) for n in range(1, 7)]
    huge = call(seq=7, request="x" * (SHIP_BATCH_BYTES_MAX + 1))
    leave(tmp_path, [*big, huge, call(seq=8)])
    ship_all(tmp_path, target_of(sink.endpoint))
    assert [seen.span_ids() for seen in sink.seen] == [ids(1, 2), ids(3, 4), ids(5, 6), ids(7), ids(8)]


def test_damaged_file_is_set_aside_and_the_rest_delivered(
    tmp_path: Path, sink: OtlpSink, caplog: pytest.LogCaptureFixture
) -> None:
    """The part before the damage and every other file are delivered; the damaged file is kept."""
    damaged = leave(tmp_path, calls(1, 2, 3))
    content = bytearray(damaged.read_bytes())
    content[len(MAGIC) + 2 * (8 + len(call(seq=1))) + 20] ^= 0xFF
    damaged.write_bytes(content)
    leave(tmp_path, [call(OTHER_RUN, 9)], OTHER_RUN)
    shipper = make_shipper(tmp_path, sink.endpoint)
    assert shipper.shutdown(LONG_MS)
    assert sorted(sink.span_ids()) == [1009]
    assert "is damaged at byte" in caplog.text
    assert [p.read_bytes() for p in (tmp_path / "spool" / "refused").iterdir()] == [bytes(content)]
    assert not ack_path(damaged).exists()


def test_what_was_not_meant_to_leave_stays(tmp_path: Path, sink: OtlpSink) -> None:
    """Runs recorded without an endpoint and imported runs leave this machine only by ship_all."""
    leave(tmp_path, whole_run(), to_ship=False)
    SpoolCatalog(tmp_path).import_bundle(pack(OTHER_RUN, whole_run(OTHER_RUN)))
    shipper = make_shipper(tmp_path, sink.endpoint)
    assert shipper.shutdown(LONG_MS)
    assert (sink.seen, len(list(iter_spool_files(tmp_path)))) == ([], 2)
    report = ship_all(tmp_path, target_of(sink.endpoint))
    assert (report.files, report.payloads, report.remaining, report.error) == (2, 8, 0, "")


def test_two_shippers_of_a_process_deliver_once(tmp_path: Path, sink: OtlpSink) -> None:
    """Two shippers on one directory do not send a live file at the same time."""
    entered, leave = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        entered.set()
        leave.wait(30)
        return OK

    sink.answer = answer
    writer = SpoolWriter(tmp_path, RUN)
    writer.append(call(seq=1))
    first, second = make_shipper(tmp_path, sink.endpoint), make_shipper(tmp_path, sink.endpoint)
    first.notify()
    assert entered.wait(30)
    assert not second.flush(LONG_MS)
    assert sink.seen == []
    leave.set()
    assert first.flush(LONG_MS)
    assert sink.span_ids() == ids(1)
    writer.close()
    first.shutdown()
    second.shutdown()


def test_acknowledgement_beyond_the_end_is_not_believed(tmp_path: Path, sink: OtlpSink) -> None:
    """A nonsense acknowledgement causes a second delivery, never an unread file."""
    for n, text in enumerate(["999999", "-1", "ten", "\u00b2", ""]):
        path = leave(tmp_path, calls(n))
        ack_path(path).write_text(text)
    assert ship_all(tmp_path, target_of(sink.endpoint)).payloads == 5
    assert sorted(sink.span_ids()) == ids(0, 1, 2, 3, 4)


def test_missing_directory_has_nothing_to_ship(tmp_path: Path, sink: OtlpSink) -> None:
    """A missing directory is not an error."""
    assert ship_all(tmp_path / "nope", target_of(sink.endpoint)).files == 0
    assert not (tmp_path / "nope").exists()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {path}.key -out {path}".split(),
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + Path(f"{path}.key").read_text())
    return path


def test_tls_is_verified(tmp_path: Path, certificate: Path) -> None:
    """Over https the collector's certificate is checked: an unknown one gets nothing, a trusted one everything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    leave(tmp_path, calls(1, 2))
    with otlp_sink.serve(tls=context) as sink:
        target = target_of(sink.endpoint.replace("http:", "https:"))
        assert ship_all(tmp_path, target).error.endswith("SSLCertVerificationError")
        assert sink.seen == []
        assert ship_all(tmp_path, replace(target, certificate=str(certificate))).error == ""
        assert sink.span_ids() == ids(1, 2)
