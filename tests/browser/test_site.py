"""The documentation site in a browser: offline, without errors, readable in each width and colour."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers.browser import Watched
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.browser

PROJECT = Path(__file__).parents[2]
SHOWN = (
    "", "guides/quickstart/", "guides/notebook/", "results/hbfl/", "results/hbfl-analysis/", "assumptions/pfedbayes/",
    "reference/python/", "reference/methods/", "internals/architecture/",
)  # fmt: skip
WIDE, NARROW = 1440, 390


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    mkdocs = Path(sys.executable).with_name("mkdocs")
    if not mkdocs.exists():
        pytest.skip("no mkdocs here; `make docs` installs it")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run([mkdocs, "build", "-d", str(place)], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="session")
def site(folder: Path) -> Iterator[str]:
    """The address of the site, served from this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def opened(browser: Browser, address: str, width: int = WIDE, dark: bool = False) -> Watched:
    """A page of the site in a window of that width."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    seen = Watched(context.new_page())
    seen.page.goto(address, wait_until="networkidle")
    return seen


def test_every_page_is_whole_and_asks_nobody(browser: Browser, folder: Path, site: str) -> None:
    seen = opened(browser, site)
    for file in sorted(folder.rglob("index.html")):
        seen.page.goto(site + file.parent.relative_to(folder).as_posix().removeprefix(".") + "/")
        broken = seen.page.evaluate("[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)")
        assert broken == [], file
        assert seen.page.locator("h1").count() == 1, file
    assert [url for url in seen.requests if not url.startswith((site, "data:"))] == []
    assert seen.said == []


@pytest.mark.parametrize("path", SHOWN)
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_readable(browser: Browser, site: str, path: str, width: int, dark: bool) -> None:
    page = opened(browser, site + path, width, dark).page
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert found.violations_count == 0, found.generate_report()


def test_search_finds_a_page(browser: Browser, site: str) -> None:
    page = opened(browser, site).page
    box = page.get_by_role("textbox", name="Search")
    box.click()
    box.press_sequentially("calibration", delay=20)
    expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=20_000)


def test_formulas_are_shown(browser: Browser, site: str) -> None:
    page = opened(browser, f"{site}results/hbfl-analysis/").page
    assert page.locator("math[display=block]").first.bounding_box()["width"] > 100  # type: ignore[index]
