"""`spanreplay show --html`: a run as one page, tested in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import Result

from spanreplay.cli.runs import page as pages
from spanreplay.model.call import Recording
from support.browser import find_chromium, open_page
from support.recordings import make_incident, write_spool
from support.runs import make_call

Invoke = Callable[..., Result]

HOSTILE: Final = (
    '</pre><script>document.title = "ran"</script><img src="http://127.0.0.1:9/x" onerror="alert(1)">\x1b[31m'
)
in_browser: Final = pytest.mark.skipif(not find_chromium(), reason="no Chromium here: tools/browser.sh")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Chromium page for all tests here."""
    with open_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag}.{name}" for name, _ in attrs)}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _read(page: str) -> _Tags:
    read = _Tags()
    read.feed(page)
    return read


def _hostile() -> Recording:
    """A run whose every text is markup."""
    run = make_incident()
    calls = [
        replace(
            call,
            name=HOSTILE,
            code=HOSTILE,
            lane=HOSTILE,
            request=json.dumps({"args": [HOSTILE], "kwargs": {HOSTILE: 1}}),
            response=json.dumps({"value": HOSTILE}),
            meta={"model": HOSTILE},
        )
        for call in run.calls
    ]
    manifest = {**run.root.manifest, "stdout": {"text": HOSTILE}, "stderr": {"text": HOSTILE}}
    env = {"argv": [HOSTILE], "git_sha": HOSTILE, "python": HOSTILE}
    root = replace(run.root, app=HOSTILE, user_id=HOSTILE, session_id=HOSTILE, env=env, manifest=manifest)
    return Recording(root, tuple(calls))


@pytest.mark.browser
@pytest.mark.slow
@in_browser
def test_w7_a_link_to_a_call_opens_it(chromium: Any, spanreplay: Invoke, data_dir: Path) -> None:
    """One page holds the run; calls are folded, and a link to a call, also to a nested one, unfolds it."""
    run = make_incident()
    write_spool(data_dir, run)
    done = spanreplay("show", "latest", "--html", "run.html")
    assert (done.exit_code, done.stderr) == (0, "wrote run.html\n")
    asked: list[str] = []
    chromium.on("request", lambda request: asked.append(request.url))
    address = Path("run.html").resolve().as_uri()
    chromium.goto(address, wait_until="load")
    head = chromium.inner_text("header")
    assert "trade-bot" in head
    assert "4 calls" in head
    assert not chromium.is_visible("#call-1")
    for number, said in ((1, "sell 1,000 worth"), (3, "127.0.0.1/orders")):
        chromium.goto(f"{address}#call-{number}", wait_until="load")
        assert chromium.is_visible(f"#call-{number}")
        assert said in chromium.inner_text(f"#call-{number}")
    assert not chromium.is_visible("#call-4")
    assert {url.partition("#")[0] for url in asked} == {address}


@pytest.mark.browser
@pytest.mark.slow
@in_browser
def test_w7_a_hostile_run_does_nothing_in_the_page(chromium: Any, tmp_path: Path) -> None:
    """Everything in a recording is text in the page: no script runs, nothing is loaded."""
    path = tmp_path / "run.html"
    run = _hostile()
    path.write_text(pages.render_run(run, run.calls, {}), encoding="utf-8")
    asked: list[str] = []
    chromium.on("request", lambda request: asked.append(request.url))
    chromium.goto(path.as_uri(), wait_until="load")
    assert chromium.title() != "ran"
    assert chromium.locator("script, img").count() == 0
    assert asked == [path.as_uri()]


def test_w7_every_text_of_a_run_is_escaped() -> None:
    """Without a browser: the page has only its own elements, and no control character is left."""
    run = _hostile()
    page = pages.render_run(run, run.calls, {run.calls[0].span_id: "javascript:alert(1)"})
    plain = make_incident()
    assert _read(page).found <= _read(pages.render_run(plain, plain.calls, {})).found | {"section"}
    assert "\x1b" not in page
    assert "javascript:" not in page


def test_w7_a_page_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is cut and says by how much; calls beyond the page's limit are listed without their text."""
    run = make_incident()
    long = replace(run.calls[1], response=json.dumps({"value": "x" * 100_000}))
    page = pages.render_run(Recording(run.root, (long,)), (long,), {})
    assert len(page) < 100_000
    assert re.search(r"… and [0-9,]+ more characters", page)
    monkeypatch.setattr(pages, "PAGE_CHARACTERS_MAX", 1000)
    calls = tuple(make_call(run.run_id, seq, request=json.dumps({"args": ["y" * 400]})) for seq in range(1, 9))
    read = _read(pages.render_run(Recording(run.root, calls), calls, {}))
    text = "".join(read.texts)
    assert "beyond 1,000 characters are left out" in text
    assert text.count("#call-") == len(calls)
    assert text.count("y" * 400) < len(calls)


def test_w7_calls_that_are_chosen_are_in_the_page(spanreplay: Invoke, data_dir: Path) -> None:
    """--kind, --grep and --errors select calls for the page as for the terminal; unsupported options are refused."""
    write_spool(data_dir, make_incident())
    assert spanreplay("show", "latest", "--kind", "tool", "--html", "run.html").exit_code == 0
    text = "".join(_read(Path("run.html").read_text(encoding="utf-8")).texts)
    assert "1 of 4 calls" in text
    assert "#call-2" in text
    assert "#call-1" not in text
    for other in (("--json",), ("--call", "1")):
        refused = spanreplay("show", "latest", "--html", "run.html", *other)
        assert refused.exit_code == 2
        assert "leave out --json, --full and --call" in refused.stderr


def test_w7_calls_that_stand_in_a_circle_are_listed() -> None:
    """A recording may claim that a call was made inside itself, or that two calls contain each other."""
    run = make_incident()
    first, second = replace(run.calls[0], parent=2), replace(run.calls[1], parent=1)
    own = replace(run.calls[2], parent=3)
    calls = (first, second, own)
    text = "".join(_read(pages.render_run(Recording(run.root, calls), calls, {})).texts)
    assert {f"#call-{number}" for number in (1, 2, 3)} <= set(re.findall(r"#call-\d", text))
