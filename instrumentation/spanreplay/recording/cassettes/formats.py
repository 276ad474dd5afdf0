"""The layouts of cassettes: vcrpy (YAML, JSON, and its in-memory form), betamax, and responses' recorder."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from spanreplay.model.errors import ForeignFile, NewerSchema
from spanreplay.recording.cassettes.bodies import BadBody, decompress, read_body
from spanreplay.recording.cassettes.interaction import Cassette, Interaction
from spanreplay.recording.cassettes.yaml_text import Lines, load_yaml

__all__ = ["FILE_BYTES_MAX", "is_cassette", "read_cassette"]

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
INTERACTIONS_MAX: Final = 100_000
HEADERS_MAX: Final = 1_000
_VCRPY, _BETAMAX, _RESPONSES = "vcrpy", "betamax", "responses"
_LISTS: Final = {"interactions": _VCRPY, "http_interactions": _BETAMAX, "responses": _RESPONSES}
"""Member that lists the exchanges → the tool that names it so."""
_GZIP: Final = b"\x1f\x8b"
_HINT: Final = "it must be a cassette of vcrpy (YAML or JSON, version 1), betamax or responses"
_MIGRATE: Final = "python -m vcr.migration PATH rewrites the cassettes of vcrpy before 1.0"


def is_cassette(data: bytes, name: str) -> bool:
    """Whether a file may be a cassette, by its name and its first bytes; cheap, and not certain."""
    if name.lower().removesuffix(".gz").endswith((".yaml", ".yml")):
        return True
    head = data[:4096].lstrip()
    if head.startswith((b"interactions:", b"version:", b"http_interactions:")):
        return True
    return head.startswith(b"{") and any(
        f'"{member}"'.encode() in head for member in ("interactions", "http_interactions")
    )


def read_cassette(data: bytes, name: str, values: Mapping[str, str] | None = None) -> Cassette:
    """The exchanges of a cassette; errors call it `name`, and name the line.

    `values`: placeholder → the text that the program really sends or receives in its place.

    Raises: ForeignFile, NewerSchema; ConfigError if PyYAML is missing.
    """
    data = _unpack(data, name)
    no_lines: Lines = {}
    tree, lines = (_load_json(data, name), no_lines) if data.lstrip()[:1] == b"{" else load_yaml(data, name)
    if not isinstance(tree, Mapping):
        raise ForeignFile(f"{name} is not a cassette: a {type(tree).__name__}, not a mapping", hint=_MIGRATE)
    member, items = _find_items(tree, name)
    if len(items) > INTERACTIONS_MAX:
        raise ForeignFile(f"{name} has {len(items)} interactions, limit {INTERACTIONS_MAX}")
    return Cassette(_LISTS[member], tuple(_read_all(items, _where(name, member, lines), values or {})))


def _unpack(data: bytes, name: str) -> bytes:
    if data[:2] == _GZIP:
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(FILE_BYTES_MAX + 1)
        except (OSError, EOFError, zlib.error) as exc:
            raise ForeignFile(f"{name} can't be unpacked: {exc}", hint=_HINT) from exc
    if len(data) > FILE_BYTES_MAX:
        raise ForeignFile(f"{name} exceeds {FILE_BYTES_MAX} bytes", hint="split it into smaller cassettes")
    return data


def _load_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except json.JSONDecodeError as exc:
        raise ForeignFile(f"{name}:{exc.lineno}: {exc.msg}", hint=_HINT) from exc
    except (ValueError, RecursionError) as exc:
        raise ForeignFile(f"{name} is not JSON: {exc}", hint=_HINT) from exc


def _find_items(tree: Mapping[str, Any], name: str) -> tuple[str, list[Any]]:
    """The member that lists the exchanges, and the exchanges."""
    version = tree.get("version", 1)
    if isinstance(version, int) and version > 1:
        raise NewerSchema(f"{name} has version {version} of vcrpy's format; version 1 can be read", hint=_HINT)
    requests, responses = tree.get("requests"), tree.get("responses")
    if isinstance(requests, list) and isinstance(responses, list):
        if len(requests) != len(responses):
            raise ForeignFile(f"{name} has {len(requests)} requests and {len(responses)} responses", hint=_HINT)
        pairs = zip(requests, responses, strict=True)
        return "interactions", [{"request": request, "response": response} for request, response in pairs]
    for member in _LISTS:
        if isinstance(tree.get(member), list):
            return member, tree[member]
    raise ForeignFile(f"{name} is not a cassette: it has no list of interactions", hint=_HINT)


class _where:  # noqa: N801 -- reads as a function: `where(3)`
    """Names an exchange in errors: the file, the line if it is known, its number."""

    def __init__(self, name: str, member: str, lines: Lines) -> None:
        self._name = name
        self._lines = lines.get(member) or lines.get("requests") or []

    def __call__(self, number: int) -> str:
        line = f":{self._lines[number - 1]}" if number <= len(self._lines) else ""
        return f"{self._name}{line}: interaction {number}"


def _read_all(items: list[Any], where: _where, values: Mapping[str, str]) -> Iterator[Interaction]:
    for number, item in enumerate(items, 1):
        try:
            yield _read(_fill(item, values) if values else item)
        except (BadBody, ValueError) as exc:
            raise ForeignFile(f"{where(number)}: {exc}", hint=_HINT) from exc


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    """A copy in which each placeholder is replaced, wherever it stands; bytes and base64 stay as they are."""
    if isinstance(value, str):
        for placeholder, text in values.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, Mapping):
        return {_fill(name, values): _fill(each, values) for name, each in value.items()}
    return [_fill(each, values) for each in value] if isinstance(value, (list, tuple)) else value


def _read(item: Any) -> Interaction:
    """One exchange. Raises: ValueError, with a message for people."""
    if not isinstance(item, Mapping):
        raise ValueError("it is not a mapping")
    request, response = item.get("request"), item.get("response")
    if request is None and isinstance(response, Mapping) and "url" in response:  # responses has no requests
        request = {"method": response.get("method"), "uri": response.get("url")}
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        raise ValueError("it lacks its request or its response")
    return _read_pair(request, response)


def _read_pair(request: Mapping[str, Any], response: Mapping[str, Any]) -> Interaction:
    url = str(request.get("uri") or request.get("url") or "")
    if not _is_address(url):
        raise ValueError(f"its address is {url!r}, so no request can be matched; --replace '{url}=https://…' gives it")
    status, reason = _read_status(response)
    headers = tuple(_read_headers(response.get("headers"), response.get("content_type")))
    encodings = ",".join(value for name, value in headers if name.lower() == "content-encoding")
    return Interaction(
        method=str(request.get("method") or "GET").upper(),
        url=url,
        headers=tuple(_read_headers(request.get("headers"))),
        body=read_body(request, "body"),
        status=status,
        reason=reason,
        http_version=_read_version(response),
        reply_headers=headers,
        reply_body=decompress(read_body(response, "body", "content"), encodings),
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme.lower() in ("http", "https") and bool(parts.netloc)


def _read_status(response: Mapping[str, Any]) -> tuple[int, str]:
    status: Any = response.get("status", response.get("status_code"))
    reason = ""
    if isinstance(status, Mapping):
        reason, status = str(status.get("message") or ""), status.get("code")
    try:
        code = int(str(status))
        known = HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else ""
    except ValueError:
        raise ValueError(f"its status is {status!r}, not a number") from None
    if not 100 <= code <= 999:
        raise ValueError(f"its status is {code}, not from 100 to 999")
    return code, reason or known


def _read_version(response: Mapping[str, Any]) -> str:
    version = response.get("http_version") or response.get("protocol")
    return version if isinstance(version, str) and version.startswith("HTTP/") and len(version) < 10 else "HTTP/1.1"


def _read_headers(headers: Any, content_type: Any = None) -> Iterator[tuple[str, str]]:
    """Name and value of each header; a mapping of texts or lists, or a list of pairs. Raises: ValueError."""
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers or ()
    if not isinstance(pairs, (list, tuple)) and not isinstance(headers, Mapping):
        raise ValueError(f"its headers are {type(headers).__name__}, not a mapping")
    count, has_type = 0, False
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError("one of its headers is not a name with a value")
        name, values = _text(pair[0]), pair[1]
        has_type = has_type or name.lower() == "content-type"
        for value in values if isinstance(values, (list, tuple)) else (values,):
            count += 1
            if count > HEADERS_MAX:
                raise ValueError(f"it has more than {HEADERS_MAX} headers")
            yield name, _text(value)
    if content_type and not has_type:
        yield "Content-Type", _text(content_type)


def _text(value: Any) -> str:
    """A header's name or value as text of one line."""
    text = value.decode("latin-1") if isinstance(value, bytes) else "" if value is None else str(value)
    if "\r" in text or "\n" in text:
        raise ValueError("one of its headers has more than one line")
    return text
