"""What a reader does with the page, done in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers.browser import watched
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

REPORTS = ["of_results", "of_made_up"]
WIDTHS = [390, 768, 1440]


@pytest.fixture(params=REPORTS)
def report(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def tabs(page: Page) -> int:
    return page.get_by_role("tab").count()


def open_all(page: Page) -> None:
    """Open every part of the tab that is shown, and wait until its charts are drawn."""
    page.evaluate(
        "document.querySelectorAll('[role=tabpanel]:not([hidden]) details').forEach((one) => (one.open = true))"
    )
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws what is not yet in sight
    page.wait_for_function(
        "[...document.querySelectorAll('[role=tabpanel]:not([hidden]) .plot')].every((one) => one.querySelector('svg'))"
    )


def test_nothing_leaves_the_file_and_nothing_goes_wrong(browser: Browser, report: Path) -> None:
    seen = watched(browser, report)
    for number in range(tabs(seen.page)):
        seen.page.get_by_role("tab").nth(number).click()
        open_all(seen.page)
    runs = seen.page.evaluate("Object.keys(data.runs)")
    seen.page.evaluate("(names) => (location.hash = `runs=${names}`)", ",".join(runs[:3]))
    drawn = "[...document.querySelectorAll('#story .plot')].every((one) => one.querySelector('svg'))"
    seen.page.wait_for_function(f"document.querySelector('#story .plot') && {drawn}")
    assert [url for url in seen.requests if not url.startswith(("data:", report.as_uri()))] == []
    assert seen.said == []
    assert seen.page.title().endswith("bayesfed")


def test_every_tab_and_every_link_leads_somewhere(browser: Browser, report: Path) -> None:
    page = watched(browser, report).page
    for number in range(tabs(page)):
        tab = page.get_by_role("tab").nth(number)
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(page.locator("[role=tabpanel]:visible")).to_have_count(1)
        expect(page.locator(f"#{tab.get_attribute('aria-controls')}")).to_be_visible()
    for link in set(page.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")):
        if link.startswith("#runs="):
            assert page.evaluate("(names) => names.every((name) => name in data.runs)", link[6:].split(",")), link
        elif link.startswith("#"):
            assert page.locator(link).count() == 1, link
        else:
            assert link.startswith("data:text/") or (report.parent / link).exists(), link


def test_tabs_by_keyboard_and_back(browser: Browser, of_results: Path) -> None:
    page = watched(browser, of_results).page
    page.get_by_role("tab").first.focus()
    page.keyboard.press("ArrowRight")
    second = page.get_by_role("tab").nth(1)
    expect(second).to_be_focused()
    expect(second).to_have_attribute("aria-selected", "true")
    page.keyboard.press("End")
    expect(page.get_by_role("tab").last).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(second).to_have_attribute("aria-selected", "true")


def test_a_cell_leads_to_its_runs(browser: Browser, of_made_up: Path) -> None:
    page = watched(browser, of_made_up).page
    cell = page.locator(
        "[data-table='hbfl/table1'] .cell.higher, [data-table='hbfl/table1'] .cell.lower, [data-table='hbfl/table1'] .cell.close"
    ).first
    cell.locator("a.ours").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.locator(".story")).to_have_count(3)
    first = dialog.locator(".story").first
    for words in (
        "FML, seed 0",
        "make it again",
        "bayesfed verify",
        "bayesfed train",
        "Run file",
        "Provenance",
        "Each client",
    ):
        expect(first).to_contain_text(words)
    page.wait_for_function("document.querySelectorAll('#story .plot svg').length >= 9")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert "#runs" not in page.url


def test_the_address_keeps_the_tab_when_a_run_is_closed(browser: Browser, of_results: Path) -> None:
    page = watched(browser, of_results).page
    page.get_by_role("tab").nth(1).click()
    there = page.url
    page.locator("section.paper:visible a.ours").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.url == there


def test_a_point_of_a_curve_leads_to_its_run(browser: Browser, of_made_up: Path) -> None:
    page = watched(browser, of_made_up).page
    plot = page.locator("[data-chart='hbfl-figure4'] .plot").first
    plot.scroll_into_view_if_needed()
    expect(plot.locator("svg")).to_be_visible()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    tip = page.locator("#vg-tooltip-element.visible")
    expect(tip).to_contain_text("seed")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    expect(page.get_by_role("dialog").locator(".story")).to_have_count(1)


def test_curves_switch_off_and_on(browser: Browser, of_made_up: Path) -> None:
    page = watched(browser, of_made_up).page
    figure = page.locator("[data-chart='hbfl-figure4']")
    figure.scroll_into_view_if_needed()
    lines = figure.locator(".plot").first.locator("g.mark-line path")
    expect(lines.first).to_be_visible()
    whole = lines.count()
    box = figure.get_by_role("checkbox").first
    box.uncheck()
    expect(lines).to_have_count(whole // 2)
    box.check()
    expect(lines).to_have_count(whole)


def test_tables_sort(browser: Browser, of_results: Path) -> None:
    page = watched(browser, of_results).page
    page.get_by_role("tab", name="HBFL").click()
    table = page.locator("[data-table='hbfl/table2']")
    button = table.get_by_role("button", name="HBFL")
    read = "table => [...table.tBodies[0].rows].map((row) => row.cells[4].dataset.sort).filter(Boolean).map(Number)"
    found = {}
    for order in ("ascending", "descending"):
        button.click()
        expect(button.locator("..")).to_have_attribute("aria-sort", order)
        found[order] = table.evaluate(read)
        assert table.evaluate("table => table.tBodies[0].rows[0].cells[4].dataset.sort"), "what is not run comes last"
    assert len(found["ascending"]) > 2
    assert found["ascending"] == sorted(found["ascending"])
    assert found["descending"] == found["ascending"][::-1]


def test_tables_and_charts_download(browser: Browser, of_results: Path) -> None:
    page = watched(browser, of_results).page
    page.get_by_role("tab", name="HBFL").click()
    for link, start in (("CSV", "dataset,setting"), ("LaTeX", "% Top-1 test accuracy")):
        with page.expect_download() as download:
            page.locator("#hbfl-table1").get_by_role("link", name=link).click()
        assert Path(download.value.path()).read_text().startswith(start)
    with page.expect_download() as download:
        page.locator("[data-chart='hbfl-figure4'] button.data").click()
    assert Path(download.value.path()).read_text().startswith("panel,curve,seed,x,value,run\n")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(browser: Browser, report: Path, width: int) -> None:
    page = watched(browser, report, width).page
    for number in range(tabs(page)):
        page.get_by_role("tab").nth(number).click()
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        outside = page.evaluate(
            """(width) => [...document.querySelectorAll("main *, header *")]
                .filter((one) => !one.closest(".scroll, .tabs, pre") && one.getBoundingClientRect().right > width + 1)
                .map((one) => one.outerHTML.slice(0, 80))""",
            width,
        )
        assert outside == []
    page.evaluate("location.hash = `runs=${Object.keys(data.runs)[0]}`")
    page.wait_for_function("document.querySelectorAll('#story .plot svg').length > 0")
    assert page.locator("#story").evaluate("one => one.scrollWidth <= one.clientWidth")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(browser: Browser, report: Path, dark: bool) -> None:
    """Contrast, names, roles and order, of every tab with all its parts open, and of a run.

    Of a tab it sees three charts, and twenty rows of a table: with all of the papers' it takes an hour.
    """
    page = watched(browser, report, dark=dark).page
    axe = Axe()
    for number in range(tabs(page)):
        page.get_by_role("tab").nth(number).click()
        page.evaluate(
            """() => {
                const tab = document.querySelector("[role=tabpanel]:not([hidden])")
                const rows = [...tab.querySelectorAll("tbody tr")].filter((row) => row.sectionRowIndex >= 20)
                for (const one of [...rows, ...[...tab.querySelectorAll(".plot")].slice(3)]) one.remove()
            }"""
        )
        open_all(page)
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()
    page.evaluate("location.hash = `runs=${Object.keys(data.runs)[0]}`")
    page.wait_for_function("document.querySelectorAll('#story .plot svg').length > 0")
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()


def test_theme_can_be_chosen(browser: Browser, of_results: Path) -> None:
    page = watched(browser, of_results).page
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.get_by_label("theme").select_option("dark")
    assert page.evaluate(colour) == "rgb(20, 24, 31)"


def test_print_holds_the_open_tab(browser: Browser, of_results: Path, tmp_path: Path) -> None:
    page = watched(browser, of_results).page
    page.get_by_role("tab", name="HBFL").click()
    page.emulate_media(media="print")
    expect(page.get_by_role("tab").first).to_be_hidden()
    page.pdf(path=tmp_path / "report.pdf")
    page.wait_for_function("[...document.querySelectorAll('.plot')].some((one) => one.querySelector('svg'))")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000


def test_a_phone_reads_the_answer_first(browser: Browser, of_results: Path) -> None:
    """Without scrolling: the first claim that was tested, and what came out, over all papers and of one."""
    page = watched(browser, of_results, 390).page
    verdict = page.locator(".verdict:visible").first
    box = verdict.bounding_box()
    assert box
    assert box["y"] + box["height"] < 900
    page.get_by_role("tab", name="HBFL").click()
    lead = page.locator(".lead:visible p").first
    box = lead.bounding_box()
    assert box
    assert box["y"] + box["height"] < 900
    expect(lead).to_contain_text("points")
