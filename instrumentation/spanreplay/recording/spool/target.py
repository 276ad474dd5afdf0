"""The target that spans are shipped to, from arguments or from OpenTelemetry's OTLP variables."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from spanreplay.model.config import read_setting
from spanreplay.model.errors import ConfigError

__all__ = ["Target", "read_target", "target_of"]

logger = logging.getLogger(__name__)

_PATH: Final = "v1/traces"
_HEADERS_MAX: Final = 64
_HINT: Final = "give the OTLP/HTTP address, for example http://127.0.0.1:4318"


@dataclass(frozen=True)
class Target:
    """The URL that takes OTLP/HTTP traces, and how to talk to it; headers stay out of the repr."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_gzip: bool = True
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as exc:
        raise ConfigError(f"not a URL that spans can be sent to ({exc})", hint=_HINT) from exc
    if parts.scheme not in ("http", "https") or not has_host:
        raise ConfigError(f"not an http:// or https:// URL: scheme {parts.scheme!r}", hint=_HINT)
    return parts


def _without_user(parts: SplitResult) -> tuple[str, str]:
    """The URL without `user:password@`, and these credentials as the value of an Authorization header."""
    userinfo, _, host = parts.netloc.rpartition("@")
    authorization = ""
    if userinfo:
        authorization = "Basic " + base64.b64encode(unquote(userinfo).encode()).decode()
    return urlunsplit(parts._replace(netloc=host, fragment="")), authorization


def _make(url: str, headers: Mapping[str, str], token: str, **options: object) -> Target:
    plain_url, basic = _without_user(_checked(url))
    merged = {name.strip().lower(): value for name, value in headers.items()}
    authorization = f"Bearer {token}" if token else basic
    if authorization:
        merged.setdefault("authorization", authorization)
    for name, value in merged.items():
        if not name.isascii() or any(c in name for c in " \t\r\n:") or any(ord(c) < 32 for c in value):
            raise ConfigError(f"not an HTTP header: {name!r}", hint="headers are written as name=value,name=value")
    return Target(
        plain_url,
        merged,
        is_gzip=options.get("compression") != "none",
        certificate=str(options.get("certificate", "")),
        client_certificate=str(options.get("client_certificate", "")),
        client_key=str(options.get("client_key", "")),
    )


def target_of(endpoint: str, *, headers: Mapping[str, str] | None = None, token: str = "") -> Target:
    """The target of a base URL such as `http://127.0.0.1:4318`: `/v1/traces` is appended to its path.

    `token` becomes a bearer token unless the headers already hold an authorization. Raises: ConfigError.
    """
    return _make(_append_path(_checked(endpoint)), headers or {}, token)


def _append_path(parts: SplitResult) -> str:
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/" + _PATH))


def _parse_headers(text: str) -> dict[str, str]:
    """Parse pairs in the style of W3C Baggage, percent-decoded. A bad pair is logged without its value."""
    headers: dict[str, str] = {}
    for number, pair in enumerate(text.split(","), start=1):
        name, equals, value = pair.partition("=")
        if not pair.strip():
            continue
        if not equals or not name.strip() or len(headers) >= _HEADERS_MAX:
            logger.warning("header %d of OTEL_EXPORTER_OTLP_HEADERS is not name=value; ignored", number)
            continue
        headers[unquote(name).strip().lower()] = unquote(value).strip()
    return headers


def read_target(environ: Mapping[str, str] = os.environ) -> Target | None:
    """The target that SPANREPLAY_COLLECTOR or the OTLP variables name; None, to ship nothing, if they name none.

    A collector from SPANREPLAY_COLLECTOR gets no OTEL_EXPORTER_OTLP_HEADERS, which are meant for another one.
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is; OTEL_EXPORTER_OTLP_ENDPOINT gets `/v1/traces`.
    An unusable value is logged and ignored.
    """

    def read(noun: str) -> str:
        return (
            environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{noun}", "").strip()
            or environ.get(f"OTEL_EXPORTER_OTLP_{noun}", "").strip()
        )

    collector = read_setting("SPANREPLAY_COLLECTOR", environ).strip()
    if collector:
        return _read_collector(collector, read_setting("SPANREPLAY_TOKEN", environ))
    own_url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base_url = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not own_url and not base_url:
        return None
    if read("PROTOCOL") == "grpc":
        logger.warning(
            "spanreplay ships over OTLP/HTTP, but OTEL_EXPORTER_OTLP_PROTOCOL is grpc: "
            "set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to the HTTP address, usually port 4318"
        )
    headers = _parse_headers(environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    headers |= _parse_headers(environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", ""))
    try:
        url = own_url or _append_path(_checked(base_url))
        if own_url and not _checked(own_url).path:
            url = urlunsplit(_checked(own_url)._replace(path="/"))
        return _make(
            url,
            headers,
            read_setting("SPANREPLAY_TOKEN", environ),
            compression=read("COMPRESSION"),
            certificate=read("CERTIFICATE"),
            client_certificate=read("CLIENT_CERTIFICATE"),
            client_key=read("CLIENT_KEY"),
        )
    except ConfigError as exc:
        logger.warning("the OTLP endpoint cannot be used, nothing is shipped: %s", exc)
        return None


def _read_collector(endpoint: str, token: str) -> Target | None:
    if endpoint.lower() == "none":
        return None
    try:
        return target_of(endpoint, token=token)
    except ConfigError as exc:
        logger.warning("SPANREPLAY_COLLECTOR cannot be used, nothing is shipped: %s", exc)
        return None
