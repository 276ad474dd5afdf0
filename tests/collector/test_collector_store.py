"""The receivers and the real store together: a reader gets what an SDK sent."""

from __future__ import annotations

from pathlib import Path

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.otlp.otlp import build_recording
from spanreplay_collector.store.store import Store
from support.collector import run_collector
from support.recordings import make_incident, split_request
from support.runs import make_request
from support.stores import fresh_chdb_url

PROTOBUF = {"content-type": "application/x-protobuf"}


def test_c1_acknowledged_run_is_read_back_whole(tmp_path: Path) -> None:
    """A recording that is sent span by span and loaded in batches, some of it twice, is read back unchanged."""
    incident = make_incident(7)
    payloads = split_request(make_request(incident))
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        with run_collector(tmp_path, store) as running:
            with httpx.Client(trust_env=False, timeout=30) as client:
                for payload in [*payloads, *payloads[:2]]:
                    url = running.http + "/v1/traces"
                    assert client.post(url, content=payload, headers=PROTOBUF).status_code == 200
            running.flush()
            found = store.read_run("default", incident.run_id)
            listed = store.search("default", RunQuery())
    assert build_recording(map(ExportTraceServiceRequest.FromString, found)) == incident
    assert [summary.root.run_id for summary in listed] == [incident.run_id]
