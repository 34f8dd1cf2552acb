"""A page in a browser, with what it asked for and complained of."""

from pathlib import Path

from playwright.sync_api import Browser, Page


class Watched:
    """A page, and what it asked for or complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.said: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(str(error)))


def watched(browser: Browser, report: Path, width: int = 1440, dark: bool = False) -> Watched:
    """The report, opened in a window of that width."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    seen = Watched(context.new_page())
    seen.page.goto(report.as_uri())
    return seen
