"""Finding runs by what people know about them: user, time, tool, outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spanreplay.model.call import Outcome, Recording
from spanreplay.model.errors import AmbiguousRun, RunNotFound
from spanreplay.recording.catalog import RunQuery, matches, summarize
from spanreplay.recording.otlp import otlp
from spanreplay_collector.store.store import Store
from support.runs import START_NS, make_call, make_payload, make_recording, make_request, make_run_id
from support.stores import Front, fresh_chdb_url, fresh_database

TENANT = "acme"
CALLERS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MINUTE_NS = 60_000_000_000


def _at(number: int, recording: Recording) -> Recording:
    """The recording, with its start moved to that many minutes after the first."""
    root = replace(recording.root, start_ns=START_NS + number * MINUTE_NS)
    calls = (replace(c, start_ns=c.start_ns + number * MINUTE_NS) for c in recording.calls)
    return Recording(root, tuple(calls))


def _make(number: int, calls: int = 3, **root: Any) -> Recording:
    return _at(number, make_recording(make_run_id(number), calls=calls, **root))


def _make_all() -> list[Recording]:
    open_call = make_call(make_run_id(5), 2, outcome=Outcome.OPEN.value, response="")
    failed_call = make_call(make_run_id(6), 2, outcome=Outcome.ERROR.value)
    dangerous = make_call(make_run_id(7), 2, name="delete_accounts", kind="tool")
    remote = make_call(make_run_id(8), 2, name="search_web", kind="mcp")
    plain = [_make(number) for number in range(9)]
    with_call = {
        number: Recording(plain[number].root, (*plain[number].calls[:1], call, *plain[number].calls[2:]))
        for number, call in ((5, open_call), (6, failed_call), (7, dangerous), (8, remote))
    }
    return [
        plain[0],
        _make(1, user_id="u-8", session_id="s-2", app="trades"),
        _make(2, outcome="error"),
        _make(3, manifest={}),
        _make(4, manifest={"calls": 9}),
        *(_at(number, recording) for number, recording in with_call.items()),
        _make(9, replay_of=make_run_id(0)),
        _make(10, manifest={"calls": 3, "dropped": 2}),
        _make(11, manifest={"calls": 3, "holes": ["call 2: $.x cannot be encoded"]}),
        _make(12, manifest={"calls": "three"}, user_id="größer “x” 𝔘"),
        Recording(replace(_make(13).root, user_id=""), ()),
        _make(14, calls=0, manifest={"calls": 0}, session_id="it's \\ 'quoted'"),
        *(_make(number, app="trades", env={"unit": {"trace": CALLERS_TRACE}}) for number in (15, 16)),
        _make(17, env={"unit": "17", "trace": CALLERS_TRACE}),
    ]


RECORDINGS = _make_all()
QUERIES = {
    "all": RunQuery(limit=100),
    "replays": RunQuery(limit=100, include_replays=True),
    "user": RunQuery(user_id="u-8"),
    "user_unicode": RunQuery(user_id="größer “x” 𝔘"),
    "session": RunQuery(session_id="s-1"),
    "session_quoted": RunQuery(session_id="it's \\ 'quoted'"),
    "app": RunQuery(app="trades"),
    "tool": RunQuery(tool="delete_accounts"),
    "tool_mcp": RunQuery(tool="search_web"),
    "tool_is_no_model": RunQuery(tool="openai.chat.completions"),
    "ok": RunQuery(status="ok"),
    "error": RunQuery(status="error"),
    "incomplete": RunQuery(status="incomplete"),
    "status_unknown": RunQuery(status="fine"),
    "since": RunQuery(since_ns=START_NS + 8 * MINUTE_NS),
    "until": RunQuery(until_ns=START_NS + 2 * MINUTE_NS),
    "around": RunQuery(since_ns=START_NS + 3 * MINUTE_NS, until_ns=START_NS + 5 * MINUTE_NS),
    "prefix": RunQuery(run_id_prefix=make_run_id(1)[:-1]),
    "one": RunQuery(run_id_prefix=make_run_id(7)),
    "prefix_none": RunQuery(run_id_prefix="abcdef"),
    "prefix_no_hex": RunQuery(run_id_prefix="xyz"),
    "trace": RunQuery(trace_id=RECORDINGS[3].root.trace_id),
    "trace_of_callers": RunQuery(trace_id=CALLERS_TRACE),
    "trace_of_callers_ok": RunQuery(trace_id=CALLERS_TRACE, status="ok", app="trades"),
    "trace_none": RunQuery(trace_id="f" * 32),
    "page": RunQuery(limit=3),
    "none": RunQuery(limit=0),
    "all_at_once": RunQuery(user_id="u-7", session_id="s-1", app="refunds", tool="delete_accounts", status="ok"),
}


@pytest.fixture(scope="module", params=["chdb", "http"])
def filled(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with all runs, each of them sent twice in different batches."""
    server: Front = request.getfixturevalue("front")
    url = fresh_chdb_url() if request.param == "chdb" else server.url(fresh_database())
    with Store.open(url) as store:
        store.migrate()
        for number, recording in enumerate(RECORDINGS):
            store.load(TENANT, [make_payload(recording)], f"t{number}")
        store.load(TENANT, [make_payload(r) for r in RECORDINGS], "again")
        yield store


@pytest.mark.parametrize("name", QUERIES)
def test_s19_search_finds_what_a_scan_of_the_recordings_finds(filled: Store, name: str) -> None:
    """Every query gives the summaries that reading every recording would give, newest first."""
    query = QUERIES[name]
    summaries = sorted(map(summarize, RECORDINGS), key=lambda s: s.root.start_ns, reverse=True)
    expected = [s for s in summaries if matches(s, query)][: query.limit]
    assert filled.search(TENANT, query) == expected


def test_search_statuses_are_all_tried() -> None:
    """The recordings of this module have every status, so that the comparison means something."""
    assert {summarize(r).status for r in RECORDINGS} == {"ok", "error", "incomplete"}


def test_search_of_another_tenant_finds_nothing(filled: Store) -> None:
    """A tenant without runs finds none."""
    assert filled.search("other", RunQuery()) == []


@pytest.mark.parametrize("text", [make_run_id(7), make_run_id(7).upper(), f" {make_run_id(7)} "])
def test_resolve_a_whole_id_is_that_run(filled: Store, text: str) -> None:
    """A whole run id is found in any case and with blanks around it."""
    assert filled.resolve_run_id(TENANT, text) == make_run_id(7)


def test_resolve_a_prefix_of_many_lists_five(filled: Store) -> None:
    """A prefix of many runs is refused with the first five candidates."""
    with pytest.raises(AmbiguousRun) as caught:
        filled.resolve_run_id(TENANT, make_run_id(0)[:12])
    listed = [make_run_id(n) for n in range(18) if make_run_id(n) in str(caught.value)]
    assert len(listed) == 5
    assert "and more" in str(caught.value)


@pytest.mark.parametrize("text", ["", "019f0", "abcdef01", "not-hex", "0" * 33, "%'; DROP TABLE spans"])
def test_resolve_what_names_no_run_is_not_found(filled: Store, text: str) -> None:
    """A prefix that is too short, unknown or not hexadecimal does not match a run."""
    with pytest.raises(RunNotFound):
        filled.resolve_run_id(TENANT, text)


def test_search_a_run_without_root_is_incomplete(store: Store) -> None:
    """A run of which only a call arrived is listed under its id as incomplete."""
    request = make_request(make_recording(calls=1))
    del request.resource_spans[0].scope_spans[0].spans[1]
    store.load(TENANT, [request.SerializeToString()], "t")
    recording = otlp.build_recording([request])
    assert store.search(TENANT, RunQuery()) == [summarize(recording)]
    assert summarize(recording).status == "incomplete"
