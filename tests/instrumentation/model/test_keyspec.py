"""Allow-lists: listed fields are in the key, others are ignored and named."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from spanreplay.model.keys import compute_key, differing_fields
from spanreplay.model.keyspec import KEYSPECS, http_fields, keyspec, select
from support.dialect_samples import EVERY

API_KEYSPECS = [name for name, spec in KEYSPECS.items() if spec.is_api]
LISTED = [(name, field) for name, spec in KEYSPECS.items() if name != "http/1" for field in sorted(spec.fields)]

# Fields that SDKs and proxies add without changing the answer.
TRANSIENT = {
    "request_id": "req_1",
    "served_model_name": "m-2",
    "user": "u",
    "metadata": {"trace": "t"},
    "service_tier": "default",
    "store": True,
    "stream_options": {"include_usage": True},
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "idempotency_key": "i",
    "a_field_of_next_year": [1],
}

BODIES: dict[str, dict[str, Any]] = {
    sample.dialect().keyspec: dict(sample.dialect().read_request(sample.ask("hi")).key_fields)
    for sample in EVERY.values()
}


def _key(name: str, body: dict[str, Any]) -> str:
    return compute_key(name, select(name, body)[0]).hex


@pytest.mark.parametrize(("name", "field"), LISTED, ids=[f"{name}-{field}" for name, field in LISTED])
def test_s34_listed_field_flips_the_key(name: str, field: str) -> None:
    """Adding or changing a listed field changes the key and names the field."""
    body = {"name": "n", **BODIES.get(name, {})}
    body.pop(field, None)
    without = compute_key(name, select(name, body)[0])
    first = compute_key(name, select(name, {**body, field: "one"})[0])
    second = compute_key(name, select(name, {**body, field: "two"})[0])
    assert len({without.hex, first.hex, second.hex}) == 3
    assert differing_fields(first, second) == [field]


@pytest.mark.parametrize("name", API_KEYSPECS)
def test_s34_transient_fields_do_not_reach_the_key(name: str) -> None:
    """Fields that providers and SDKs add leave the key unchanged, and are reported as ignored."""
    body = BODIES[name]
    assert _key(name, {**body, **TRANSIENT}) == _key(name, body)
    assert select(name, {**body, **TRANSIENT})[1] == sorted(TRANSIENT)
    assert select(name, body)[1] == []


@pytest.mark.parametrize("name", API_KEYSPECS)
def test_s34_null_is_absent(name: str) -> None:
    """Some SDKs send null for unset fields and some omit them; the key is the same."""
    nulls = dict.fromkeys(sorted(keyspec(name).fields - BODIES[name].keys()))
    assert _key(name, {**BODIES[name], **nulls}) == _key(name, BODIES[name])


def test_s34_none_is_an_argument_of_a_tool() -> None:
    """A tool called with None differs from a tool called without the argument."""
    with_none = compute_key("tool/1", {"name": "t", "arguments": {"a": None}})
    without = compute_key("tool/1", {"name": "t", "arguments": {}})
    assert with_none != without


def test_s34_required_fields_are_listed() -> None:
    """Model, messages, tools, temperature, top_p and seed are in the key of a chat."""
    assert {"model", "messages", "tools", "temperature", "top_p", "seed"} <= keyspec("openai_chat/1").fields


def test_s58_temperature_is_kept_as_asked() -> None:
    """The request's temperature is passed on unchanged, never set or rounded."""
    assert select("openai_chat/1", {"model": "m", "temperature": 0.7})[0]["temperature"] == 0.7
    assert "temperature" not in select("openai_chat/1", {"model": "m"})[0]


def test_select_does_not_change_the_body() -> None:
    """Selecting leaves the caller's object unchanged."""
    body = {"method": "tools/call", "params": {"name": "t", "_meta": {"progressToken": 3}}}
    kept, ignored = select("mcp/1", body)
    assert kept == {"method": "tools/call", "params": {"name": "t"}}
    assert ignored == []
    assert body["params"] == {"name": "t", "_meta": {"progressToken": 3}}


# ── http ────────────────────────────────────────────────────────────────────────────────────────────
def _http_key(**request: Any) -> str:
    return compute_key("http/1", http_fields({"method": "POST", "url": "https://api.test/v1", **request})).hex


SAME_URLS = [
    ("https://api.test/v1?b=2&a=1", "https://API.test:443/v1?a=1&b=2"),
    ("https://user:secret@api.test/v1", "https://api.test/v1"),
    ("https://api.test", "https://api.test/"),
    ("https://api.test/v1#top", "https://api.test/v1"),
]
DIFFERENT_URLS = [
    ("https://api.test/v1?a=1&a=2", "https://api.test/v1?a=2&a=1"),
    ("https://api.test/v1?a=", "https://api.test/v1"),
    ("https://api.test/V1", "https://api.test/v1"),
    ("https://api.test:8443/v1", "https://api.test/v1"),
    ("http://api.test/v1", "https://api.test/v1"),
]


@pytest.mark.parametrize(("one", "other"), SAME_URLS, ids=["query_order", "user_info", "root", "fragment"])
def test_http_key_of_equivalent_urls(one: str, other: str) -> None:
    """Equivalent URLs have one key, and credentials never reach it."""
    assert _http_key(url=one) == _http_key(url=other)
    assert "secret" not in str(http_fields({"url": one}))


@pytest.mark.parametrize(("one", "other"), DIFFERENT_URLS, ids=["repeated", "blank", "case", "port", "scheme"])
def test_http_key_of_different_urls(one: str, other: str) -> None:
    """URLs with different meanings have different keys."""
    assert _http_key(url=one) != _http_key(url=other)


def test_http_key_ignores_headers_and_names_them() -> None:
    """Headers carry ids, dates and credentials, so none of them is in the key."""
    request = {"method": "GET", "url": "https://api.test/", "headers": {"authorization": "Bearer x"}}
    kept, ignored = select("http/1", request)
    assert ignored == ["headers"]
    assert "Bearer" not in str(kept)


@pytest.mark.parametrize("is_quoted", [True, False], ids=["quoted", "bare"])
@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
def test_http_key_normalises_the_multipart_boundary(is_quoted: bool, is_binary: bool) -> None:
    """Two uploads that differ only in their random boundary have one key; other content has another."""

    def upload(boundary: str, content: str, *, has_header: bool = True) -> str:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="f"\r\n\r\n'
        body = f"{head}{content}\r\n--{boundary}--\r\n"
        named = f'"{boundary}"' if is_quoted else boundary
        kind = f"multipart/form-data; boundary={named}" if has_header else "multipart/form-data"
        if is_binary:
            raw = body.encode("latin-1")
            return _http_key(headers={"Content-Type": kind}, body_b64=base64.b64encode(raw).decode())
        return _http_key(headers=[["content-type", kind]], body_text=body)

    assert upload("a1b2", "x\xff") == upload("ffee", "x\xff") == upload("77", "x\xff", has_header=False)
    assert upload("a1b2", "x") != upload("a1b2", "y")


def test_http_key_of_a_form_ignores_its_order() -> None:
    """A form is a set of fields, so their order does not matter."""
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert _http_key(headers=headers, body_text="a=1&b=2") == _http_key(headers=headers, body_text="b=2&a=1")
    assert _http_key(headers=headers, body_text="a=1&b=2") != _http_key(headers=headers, body_text="a=1&b=3")


def test_http_key_of_json_ignores_member_order_and_rpc_id() -> None:
    """JSON members have no order; a JSON-RPC id only pairs request and answer."""
    assert _http_key(body={"a": 1, "b": 2}) == _http_key(body={"b": 2, "a": 1})
    first = {"jsonrpc": "2.0", "id": 1, "method": "m"}
    assert _http_key(body=first) == _http_key(body={**first, "id": "9f"})
    assert _http_key(body=first) != _http_key(body={**first, "method": "n"})
    assert _http_key(body={"id": 1}) != _http_key(body={"id": 2})


@pytest.mark.parametrize("url", ["", "://", "http://[::1", "http://h:99999999/x", "http://h:x/"], ids=repr)
def test_http_fields_take_any_url(url: str) -> None:
    """An invalid URL still gives a key: the request will fail by itself."""
    assert len(_http_key(url=url)) == 64
