"""Destination of spans: the OTLP variables as OpenTelemetry specifies them."""

from __future__ import annotations

import pytest

from spanreplay.model.errors import ConfigError
from spanreplay.recording.spool.target import read_target, target_of

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({BASE: "http://127.0.0.1:4318"}, "http://127.0.0.1:4318/v1/traces"),
        ({BASE: "http://127.0.0.1:4318/"}, "http://127.0.0.1:4318/v1/traces"),
        ({BASE: "https://host/prefix"}, "https://host/prefix/v1/traces"),
        ({BASE: "https://host/prefix/"}, "https://host/prefix/v1/traces"),
        ({BASE: "http://[::1]:4318"}, "http://[::1]:4318/v1/traces"),
        ({TRACES: "http://127.0.0.1:4318"}, "http://127.0.0.1:4318/"),
        ({TRACES: "https://host/own/path?q=1"}, "https://host/own/path?q=1"),
        ({TRACES: "https://host/own", BASE: "http://other"}, "https://host/own"),
        ({TRACES: " ", BASE: "http://other"}, "http://other/v1/traces"),
        ({BASE: "http://user:pass@host"}, "http://host/v1/traces"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_endpoint_follows_the_path_rules(environ: dict[str, str], url: str) -> None:
    """The base URL gets /v1/traces; the traces URL is used as it is and wins."""
    target = read_target(environ)
    assert target is not None
    assert target.url == url


@pytest.mark.parametrize("environ", [{}, {BASE: ""}, {BASE: "  ", TRACES: ""}], ids=["unset", "empty", "blank"])
def test_no_endpoint_ships_nothing(environ: dict[str, str]) -> None:
    """If it is unset or empty, nothing leaves the machine."""
    assert read_target(environ) is None


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://host", "http://", "http://host:99999", "http://[::1"])
def test_unusable_endpoint_is_said_and_ignored(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bad value warns and is ignored if it comes from the environment, and raises if it comes from code."""
    assert read_target({BASE: endpoint}) is None
    assert "nothing is shipped" in caplog.text
    with pytest.raises(ConfigError):
        target_of(endpoint)


def test_headers_are_merged_and_decoded() -> None:
    """Headers of the signal win, values are percent-decoded, names are lower-cased, our token is the default."""
    environ = {
        BASE: "http://host",
        "OTEL_EXPORTER_OTLP_HEADERS": "X-A=1, x-b=two%20words,,",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-a=3",
        "SPANREPLAY_TOKEN": "secret",
    }
    target = read_target(environ)
    assert target is not None
    assert target.headers == {"x-a": "3", "x-b": "two words", "authorization": "Bearer secret"}
    environ["OTEL_EXPORTER_OTLP_HEADERS"] = "Authorization=Basic%20abc"
    target = read_target(environ)
    assert target is not None
    assert target.headers["authorization"] == "Basic abc"


def test_secrets_stay_out_of_logs_and_reprs(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a bad header, nor the repr of a target, nor its URL shows a credential."""
    environ = {BASE: "http://user:hunter2@host", "OTEL_EXPORTER_OTLP_HEADERS": "hunter2,x=hunter2"}
    target = read_target(environ)
    assert target is not None
    assert read_target({BASE: "http://host", "OTEL_EXPORTER_OTLP_HEADERS": "x=hunter2%0d%0ay: z"}) is None
    assert "hunter2" not in caplog.text + repr(target)
    assert target.headers["authorization"] == "Basic dXNlcjpodW50ZXIy"


def test_grpc_protocol_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """If gRPC is configured, a message says that the HTTP address is needed."""
    assert read_target({BASE: "http://host:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is not None
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in caplog.text


def test_compression_and_tls_files_are_read() -> None:
    """OTLP's own variables choose compression and certificates."""
    environ = {
        BASE: "https://host",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/client.pem",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "/client.key",
    }
    target = read_target(environ)
    assert target is not None
    assert (target.is_gzip, target.certificate, target.client_certificate, target.client_key) == (
        False,
        "/ca.pem",
        "/client.pem",
        "/client.key",
    )
    plain = read_target({BASE: "https://host"})
    assert plain is not None
    assert plain.is_gzip


def test_p9_collector_of_our_own_leaves_otlp_to_the_program() -> None:
    """With its own address set, a recording is not sent to the program's backend, nor with its headers."""
    otlp = {BASE: "http://theirs:4318", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=theirs"}
    target = read_target({**otlp, "SPANREPLAY_COLLECTOR": "http://ours:4318", "SPANREPLAY_TOKEN": "t"})
    assert target is not None
    assert (target.url, dict(target.headers)) == ("http://ours:4318/v1/traces", {"authorization": "Bearer t"})
    assert read_target({**otlp, "SPANREPLAY_COLLECTOR": "none"}) is None
    assert read_target({**otlp, "SPANREPLAY_COLLECTOR": " "}) == read_target(otlp)


def test_collector_that_cannot_be_used_is_said_and_ships_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An unusable collector is reported, and spans don't go to the program's address instead."""
    assert read_target({BASE: "http://theirs:4318", "SPANREPLAY_COLLECTOR": "ours:4318"}) is None
    assert "SPANREPLAY_COLLECTOR cannot be used" in caplog.text
