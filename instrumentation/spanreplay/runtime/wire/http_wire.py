"""HTTP exchanges as JSON, for every transport seam; redacted before a key is made of them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from spanreplay.dialects import Dialect, RequestMeaning, find_dialect, meta
from spanreplay.model import config, guard
from spanreplay.model.call import ALONE, Effect, Kind
from spanreplay.model.json_text import dump
from spanreplay.model.keyspec import http_fields
from spanreplay.model.serving_stack import read_determinism
from spanreplay.redact import RunRedactor
from spanreplay.runtime.caller.reporting import is_tool_alone
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.run import Run
from spanreplay.runtime.wire.aws_events import MEDIA_TYPE, is_event_stream, rewrite, to_text
from spanreplay.runtime.wire.binary import (
    HoldsSecret,
    clean_message,
    clean_sent,
    has_control_bytes,
    is_framed,
    refuse_secrets,
    stored_bytes,
)
from spanreplay.runtime.wire.http_headers import select
from spanreplay.runtime.wire.http_reply import (
    HttpReply,
    SplitEvents,
    encode_chunks,
    encode_events,
    encode_raw,
    split_aws,
    split_text,
)
from spanreplay.runtime.wire.sent_body import LargeBody, Taken
from spanreplay.runtime.wire.timeouts import TIMEOUT, Timeout

HTTP_KEYSPEC: Final = "http/1"
HELD_CHUNKS: Final = 32
HELD_BYTES: Final = 16 * 1024
"""How much of the end of an unfinished stream is held back: this many chunks or, if they are large, this many bytes."""
_SIGNED: Final = ("AWS4-", "OAuth ", "Signature ", "Digest ")
DETERMINISM_HEADER: Final = "x-spanreplay-determinism"
"""Header in which an inference engine states the kernels and plans that produced an answer."""
DETERMINISM_CHARS_MAX: Final = 256
_TOKEN_HEADERS: Final = {
    "x-amzn-bedrock-input-token-count": "tokens_in",
    "x-amzn-bedrock-output-token-count": "tokens_out",
}
"""Where Bedrock counts the tokens of models whose bodies do not."""
TOKEN_DIGITS_MAX: Final = 12
UNREDACTABLE: Final = "the response holds a secret inside bytes of an unknown format, and was not recorded"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass
class HttpExchange:
    """State that a seam keeps between a request and its response."""

    dialect: Dialect | None = None
    request_meaning: RequestMeaning | None = None


def describe_request(
    run: Run,
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]],
    body: Taken,
    timeout: Timeout | None = None,
) -> tuple[Spec, HttpExchange]:
    """The redacted call of a request, with its key's fields; `timeout` is None if nobody knows it."""
    counts: dict[str, int] = {}
    redact = run.redactor
    clean_url = redact_url(url, redact, counts)
    headers = list(headers)
    kept = select(run, headers)
    is_binary = is_framed(dict(kept).get("content-type", ""))
    member, parsed = _body_member(body, redact, counts, is_binary=is_binary)
    request = (
        f'{{"method":{dump(method)},"url":{dump(clean_url)},'
        f'"headers":{dump(dict(redact.headers(kept, counts)))}{member}}}'
    )
    redacted = parsed.get("body")
    dialect = find_dialect(method, url, redacted) if isinstance(redacted, dict) else None
    uses = run.resolver.variables.find_in_request(url, headers)
    limits: dict[str, Any] = {} if timeout is None else {TIMEOUT: timeout}
    if dialect is not None:
        meaning = dialect.read_request(redacted)
        guard.guarded("for whom a request is made", run.who.look_at_request, redacted)
        spec = Spec(
            kind=meaning.kind,
            name=meaning.name,
            effect=meaning.effect,
            keyspec=meaning.keyspec,
            key_fields=meaning.key_fields,
            request=request,
            meta={**meta(meaning), **limits},  # remains if no response comes
            redactions=counts,
            uses=uses,
        )
        return spec, HttpExchange(dialect, meaning)
    is_safe = method.upper() in _SAFE_METHODS
    spec = Spec(
        kind=Kind.HTTP.value,
        name=f"{method.upper()} {urlsplit(clean_url).netloc.rpartition('@')[2]}",
        effect=(Effect.READ if is_safe else Effect.WRITE).value,
        keyspec=HTTP_KEYSPEC,
        key_fields=http_fields({"method": method, "url": clean_url, "headers": dict(kept), **parsed}),
        request=request,
        meta={**limits, ALONE: True} if is_safe and run.resolver.keeps and is_tool_alone() else limits,
        redactions=counts,
        uses=uses,
    )
    return spec, HttpExchange()


def is_for_a_model(method: str, url: str, content: Taken) -> bool:
    """Whether a dialect can read a request."""
    if isinstance(content, LargeBody):
        return False
    try:
        body = json.loads(content)
    except ValueError:
        return False
    return isinstance(body, dict) and find_dialect(method, url, body) is not None


def patch_content(content: Taken, headers: Any, patches: Any) -> bytes:
    """The body of a request with a plan's patches applied. Raises: ConfigError.

    A signed request can't be changed: its signature is valid only for the original body.
    """
    from spanreplay.runtime.edits.apply_patch import patch_body

    for name, value in headers:
        if name.lower() == "authorization" and value.startswith(_SIGNED):
            raise patches[0].fail("this request is signed, so its body can't be changed on its way: set its response")
    try:
        body = json.loads(b"" if isinstance(content, LargeBody) else content)
    except ValueError:
        raise patches[0].fail("the body of this request is not JSON") from None
    return dump(patch_body(body, patches)).encode()


def _body_member(
    body: Taken, redact: RunRedactor, counts: dict[str, int], *, is_binary: bool
) -> tuple[str, dict[str, Any]]:
    """The body's member of the request's JSON text, and the same member as a value."""
    if not body:
        return "", {}
    if isinstance(body, LargeBody):
        stated = f',"body_bytes":{body.size}' if body.is_whole else ""
        return stated, {"body_text": body.sha256}
    if len(body) > config.BODY_BYTES_MAX:
        return f',"body_bytes":{len(body)}', {"body_text": hashlib.sha256(body).hexdigest()}
    if is_binary:
        body = clean_sent(body, redact, counts)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        encoded = base64.b64encode(clean_sent(body, redact, counts)).decode("ascii")
        return f',"body_b64":{dump(encoded)}', {"body_b64": encoded}
    if text[:1] in "{[":
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if value is not None:
            redacted = redact.value(value, counts)
            # The text is kept as it was sent unless something in it had to be redacted
            return f',"body":{text if redacted is value else dump(redacted)}', {"body": redacted}
    clean = redact.text(text, counts)
    return f',"body_text":{dump(clean)}', {"body_text": clean}


def redact_url(url: str, redact: RunRedactor, counts: dict[str, int]) -> str:
    """A URL without user-info and with the secrets of its query replaced."""
    if _is_plain_url(url):
        return redact.text(url, counts)
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    query = parts.query
    if query:
        pairs = parse_qsl(query, keep_blank_values=True)
        clean = redact.headers(pairs, counts)
        if [(k, v) for k, v in clean] != pairs:
            query = urlencode([(k, v) for k, v in clean])
    if netloc == parts.netloc and query == parts.query:
        return redact.text(url, counts)
    return redact.text(urlunsplit((parts.scheme, netloc, parts.path, query, "")), counts)


def encode_reply(run: Run, reply: HttpReply, spec: Spec) -> tuple[str, list[str]]:
    """A response as redacted JSON text, and its body's chunks as text (none if it is not text)."""
    before = sum(spec.redactions.values())
    try:
        value, texts = _reply_value(run, reply, spec.redactions)
    except HoldsSecret:
        spec.hole = UNREDACTABLE
        return dump({"truncated": sum(len(c) for _, c in reply.chunks), "why": UNREDACTABLE}), []
    if sum(spec.redactions.values()) > before:
        spec.raw = encode_raw(reply)
    return dump(value), texts


def redact_reply(run: Run, reply: HttpReply) -> None:
    """Redact a response only for the redactor to learn from it. Raises: HoldsSecret."""
    _reply_value(run, reply, {})


def encode_so_far(run: Run, reply: HttpReply) -> str:
    """An unfinished response without the last part of its body, as redacted JSON text; '' if nothing can be shown."""
    try:
        value, _ = _reply_value(run, reply, {})
    except HoldsSecret:
        return ""
    chunks, held = value.get("chunks") or [], 0
    while chunks and held < HELD_BYTES and len(value["chunks"]) - len(chunks) < HELD_CHUNKS:
        held += len(str(chunks[-1][1]))
        chunks = chunks[:-1]
    text = dump({**value, "chunks": chunks, "end": "open"}) if chunks else ""
    return text if len(text) <= config.BODY_BYTES_MAX else ""


def _reply_value(run: Run, reply: HttpReply, counts: dict[str, int]) -> tuple[dict[str, Any], list[str]]:
    value: dict[str, Any] = {}
    texts: list[str] = []
    if reply.status:
        clean = _find_clean(run, reply)
        texts, chunks = clean or _encode_body(run, reply, counts)
        value = {
            "status": reply.status,
            "reason": reply.reason,
            "http_version": reply.http_version,
            "headers": reply.headers if clean else _redact_headers(reply.headers, run.redactor, counts),
            "url": reply.url if clean else redact_url(reply.url, run.redactor, counts),
            "chunks": chunks,
            "end": reply.end,
        }
    if reply.extra:
        value["extra"] = reply.extra
    if reply.error is not None:
        error = {**reply.error, "message": run.redactor.text(str(reply.error["message"]), counts)}
        if "value" in error:
            error["value"] = run.redactor.value(error["value"], counts)
        value["error"] = error
    if reply.hops:
        value["hops"] = [_reply_value(run, hop, counts)[0] for hop in reply.hops]
    return value, texts


def _find_clean(run: Run, reply: HttpReply) -> tuple[list[str], list[list[Any]]] | None:
    """The texts and chunks of a body, if a quick check finds nothing to redact in the whole response.

    None for any other response, including those with cookies or a body that is not plain text.
    """
    for name, value in reply.headers:
        lower = name.lower()
        if lower == "set-cookie" or (lower == "content-type" and _is_binary(value.lower())):
            return None
    if not _is_plain_url(reply.url):
        return None
    chunks = [chunk for _, chunk in reply.chunks]
    split = split_text(chunks)
    if split is None or has_control_bytes(chunks):
        return None
    body = split.texts[0] if len(split.texts) == 1 else "".join(split.texts)
    if not run.redactor.is_clean(reply.headers, (body, reply.url)):
        return None
    return split.texts, encode_chunks([ms for ms, _ in reply.chunks], split)


def _is_binary(content_type: str) -> bool:
    """Whether a body of this type is not read as text."""
    return is_framed(content_type) or content_type.startswith(MEDIA_TYPE)


def _is_plain_url(url: str) -> bool:
    """Whether a URL has no user-info, no query and no bracketed address, which may be invalid."""
    return "?" not in url and "@" not in url and "[" not in url


def _redact_headers(headers: list[tuple[str, str]], redact: RunRedactor, counts: dict[str, int]) -> list[list[str]]:
    """Headers without their secrets; in a cookie being set, only the value is secret.

    The redactor learns only the value, so that it gets the same token here and where the agent prints the header.
    """
    cookies = [_cut_cookie(value) if name.lower() == "set-cookie" else ("", value, "") for name, value in headers]
    clean = redact.headers([(name, cut[1]) for (name, _), cut in zip(headers, cookies, strict=True)], counts)
    return [
        [name, f"{before}{value}{behind}"] for (name, value), (before, _, behind) in zip(clean, cookies, strict=True)
    ]


def _cut_cookie(text: str) -> tuple[str, str, str]:
    """A cookie's name, its value, and its attributes."""
    cookie, semicolon, attributes = text.partition(";")
    name, equals, value = cookie.partition("=")
    return f"{name}{equals}", value, f"{semicolon}{attributes}"


def _content_type(reply: HttpReply) -> str:
    return next((value.lower() for name, value in reply.headers if name.lower() == "content-type"), "")


def _encode_body(run: Run, reply: HttpReply, counts: dict[str, int]) -> tuple[list[str], list[list[Any]]]:
    if is_event_stream(reply.headers):
        events = split_aws([c for _, c in reply.chunks])
        if events is not None:
            return _encode_events(run, reply, events, counts)
    times, chunks = [ms for ms, _ in reply.chunks], [c for _, c in reply.chunks]
    content_type = _content_type(reply)
    if is_framed(content_type) and len(chunks) == 1:
        chunks = [clean_message(chunks[0], run.redactor, counts)]
    split = split_text(chunks)
    if split is None and content_type.startswith("text/"):  # a character set with one byte per character
        latin = run.redactor.chunks([chunk.decode("latin-1") for chunk in chunks], counts)
        chunks = [chunk.encode("latin-1") for chunk in latin]
    elif split is None or has_control_bytes(chunks):
        refuse_secrets(b"".join(chunks), run.redactor)
    if split is None:
        return [], [[ms, stored_bytes(c)] for ms, c in zip(times, chunks, strict=True)]
    texts = run.redactor.chunks(split.texts, counts)
    return texts, encode_chunks(times, replace(split, texts=texts))


def _encode_events(
    run: Run, reply: HttpReply, split: SplitEvents, counts: dict[str, int]
) -> tuple[list[str], list[list[Any]]]:
    """Event messages, redacted as one text, their concatenated JSON."""
    flat = [event for events in split.events for event in events]
    before = list(map(to_text, flat))
    texts = run.redactor.chunks(before, counts)
    if texts != before:
        made = iter(rewrite(flat, texts))
        # The rest of a message that was cut short may hold half of a value that was just replaced
        split = SplitEvents([[next(made) for _ in events] for events in split.events], split.cuts)
    return texts, encode_events([ms for ms, _ in reply.chunks], split)


def read_meta(exchange: HttpExchange, reply: HttpReply, texts: list[str], *, is_stream: bool) -> dict[str, Any]:
    """The dialect's reading of a finished exchange; empty for plain HTTP."""
    if exchange.dialect is None or exchange.request_meaning is None:
        return {}
    response = exchange.dialect.read_response(reply.status, texts, is_stream)
    found: dict[str, Any] = meta(exchange.request_meaning, response)
    if response.error and reply.status < 400:
        found["error"] = response.error  # in a stream that began well: its status does not show the error
    for name, value in reply.headers:
        lower = name.lower()
        if not lower.startswith("x-"):
            continue
        count = _TOKEN_HEADERS.get(lower)
        if count is not None and value.isdecimal() and len(value) <= TOKEN_DIGITS_MAX:
            found.setdefault(count, int(value))
        if lower == DETERMINISM_HEADER:
            found["determinism"] = value[:DETERMINISM_CHARS_MAX]
            found.update(read_determinism(found["determinism"]))
    return found
