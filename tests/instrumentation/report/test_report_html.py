"""The HTML report in a real Chromium: what is visible, what is folded, and that nothing in it runs or loads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanreplay.report import html
from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict
from support.browser import find_chromium, open_page

GOLDEN = Path(__file__).with_name("golden")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not find_chromium(), reason="no Chromium here: tools/browser.sh"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Chromium page for all tests here."""
    with open_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def _open(page: Any, verdict: Verdict, folder: Path) -> list[str]:
    """Open the report; return every address that the page requested."""
    path = folder / "report.html"
    path.write_text(html.render(verdict), encoding="utf-8")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri(), wait_until="load")
    return asked


def test_s65_html_shows_the_one_cause_side_by_side(page: Any, tmp_path: Path) -> None:
    """Verdict and cause are visible at once, with both values side by side; downstream divergences are folded."""
    _open(page, parse((GOLDEN / "changed_call.json").read_text(encoding="utf-8")), tmp_path)
    assert page.locator("h1").inner_text() == "✘ diverged"
    cause = page.locator("section").first
    assert cause.locator("h2").inner_text() == "The cause"
    then, now = cause.locator("figure.then pre"), cause.locator("figure.now pre")
    assert (then.inner_text(), now.inner_text()) == ("sell $1,000 worth", "sell 1,000")
    assert [m.strip() for m in then.locator("mark").all_inner_texts()] == ["$", "worth"]
    left, right = then.bounding_box(), now.bounding_box()
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    assert "agent.py:31 run" in cause.inner_text()
    downstream = page.get_by_text("call 8 (tool:place_order)")
    assert not downstream.is_visible()
    page.get_by_text("3 further differences downstream").click()
    assert downstream.is_visible()


def test_s65_html_runs_and_loads_nothing(page: Any, attack: Verdict, tmp_path: Path) -> None:
    """Hostile content is shown as text: no script runs, no element appears, only the file itself is requested."""
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    asked = _open(page, attack, tmp_path)
    assert page.title().startswith("diverged: </pre>")
    assert page.title() != "owned"
    assert page.locator("script, img, iframe, object, link, a").count() == 0
    assert "<script>document.title='owned'</script>" in page.locator("section h3").first.inner_text()
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert logged == []


def test_s65_html_policy_forbids_scripts_even_if_one_gets_in(page: Any, tmp_path: Path) -> None:
    """If escaping failed, the page's own policy would still stop the script, and keep the style."""
    verdict = parse((GOLDEN / "identical.json").read_text(encoding="utf-8"))
    path = tmp_path / "injected.html"
    path.write_text(html.render(verdict).replace("<main>", "<main><script>document.title='owned'</script>"))
    page.goto(path.as_uri(), wait_until="load")
    assert page.title() == "identical: trade-bot"
    assert page.locator("header").evaluate("e => getComputedStyle(e).borderLeftStyle") == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("case", ["changed_call", "identical", "incomplete"])
def test_s65_html_can_be_read_light_and_dark(page: Any, tmp_path: Path, case: str, scheme: str) -> None:
    """Text and heading have a contrast of at least 4.5:1 (WCAG AA) in both schemes."""
    page.emulate_media(color_scheme=scheme)
    _open(page, parse((GOLDEN / f"{case}.json").read_text(encoding="utf-8")), tmp_path)
    for element, ground in (("body", "body"), ("header h1", "header"), ("dt", "body")):
        ink = _luminance(page, element, "color")
        paper = _luminance(page, ground, "backgroundColor")
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5
    assert (_luminance(page, "body", "backgroundColor") < 0.5) == (scheme == "dark")


def _luminance(page: Any, selector: str, name: str) -> float:
    shown = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
    red, green, blue = (int(n) / 255 for n in re.findall(r"\d+", shown)[:3])
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
