"""The page of a comparison in a browser: two widths, both themes, its switches, its charts, and what is told of a method."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers.browser import watched
from helpers.comparing import grounds
from playwright.sync_api import Browser

from bayesfed.core import files
from bayesfed.report import grounds_page
from bayesfed.results.grounds import SIDES
from bayesfed.results.paired import Comparison

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two grounds with four methods, one of which the reader has asked for, and one with a hostile name."""
    root = tmp_path_factory.mktemp("grounds")
    levels = {
        "FedAvg": [0.80, 0.82],
        "Mine": [0.90, 0.91],
        "Close": [0.91, 0.90],
        "Mine, plain": [0.94, 0.95],
        HOSTILE: [0.5, 0.6],
    }
    turned = {**levels, "FedAvg": [0.95, 0.96]}
    sides = [Comparison(grounds(root, {"harsh": levels, "mild": turned}), side) for side in SIDES]
    files.write_text(root / "page.html", grounds_page.page(sides, [], "Compared", ["Mine"]))
    return root / "page.html"


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True), (390, False), (1440, True)])
def test_it_fits_and_asks_for_nothing(browser: Browser, page: Path, width: int, dark: bool) -> None:
    seen = watched(browser, page, width, dark)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.requests == [page.as_uri()]
    assert seen.said == []
    assert seen.page.title() == "Compared · bayesfed"
    assert seen.page.locator("#charts svg").count() == 3
    assert seen.page.locator("#table tbody tr.asked").inner_text().startswith("Mine")


def test_columns_sort_and_switches_change_the_table(browser: Browser, page: Path) -> None:
    seen = watched(browser, page)
    names = lambda: seen.page.locator("#table tbody th").all_inner_texts()  # noqa: E731
    assert names()[-1] == HOSTILE
    assert names()[names().index("Mine") + 1] == "Mine, plain"  # below it, though more accurate
    seen.page.locator("#table .sort", has_text="ECE %").click()
    assert names()[-1] == HOSTILE
    assert seen.page.locator("th[aria-sort=ascending]").inner_text() == "ECE % ↓"
    seen.page.locator("#table .sort", has_text="ECE %").click()
    assert names()[0] == HOSTILE
    assert seen.page.locator("td.best").count() >= 4
    seen.page.select_option("#other", "FedAvg")
    mine = seen.page.locator("#table tr.asked td")
    assert mine.first.inner_text().startswith("▲ +")
    assert "win" in (mine.first.get_attribute("class") or "")
    seen.page.select_option("#ground", "1")
    assert "loss" in (mine.first.get_attribute("class") or "")
    assert "mild" in seen.page.locator("#about").inner_text()
    seen.page.select_option("#ground", "")
    assert mine.first.inner_text().endswith("1/0/1")
    seen.page.select_option("#view", "cost")
    assert "MB" not in seen.page.locator("#table thead").inner_text()  # there are no differences of costs
    seen.page.select_option("#other", "")
    assert seen.page.locator("#view").input_value() == "quality"
    seen.page.select_option("#ground", "1")
    seen.page.select_option("#view", "cost")
    assert "MB ↓" in seen.page.locator("#table thead").inner_text()
    assert "ECE" not in seen.page.locator("#table thead").inner_text()
    seen.page.select_option("#side", "personal")
    assert "personal models" in seen.page.locator(".where").inner_text()
    seen.page.reload()  # what is shown is in the address
    assert [seen.page.locator(f"#{one}").input_value() for one in ("side", "ground", "view")] == [
        "personal",
        "1",
        "cost",
    ]
    assert seen.said == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser: Browser, page: Path, dark: bool) -> None:
    seen = watched(browser, page, dark=dark)
    for opened in (False, True):
        if opened:
            seen.page.locator("#table tr.asked button").click()
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


def test_a_method_opens_its_runs(browser: Browser, page: Path) -> None:
    seen = watched(browser, page)
    seen.page.locator("#table tr.asked button").click()
    story = seen.page.locator("dialog[open]")
    assert story.locator("h2").inner_text() == "Mine"
    assert story.locator("h3").count() == 2
    story.locator("summary").first.click()
    assert "bayesfed verify" in story.locator("pre").nth(1).inner_text()
    seen.page.keyboard.press("Escape")
    assert seen.page.locator("dialog[open]").count() == 0
    seen.page.locator("#charts .asked").first.click()
    assert story.locator("h2").inner_text() == "Mine"
