"""Hooks of the documentation site: pages from the project's folder, links that leave `docs/`, formulas as MathML."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    "index.md": ROOT / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "style.md": ROOT / "STYLE.md",
    "changelog.md": ROOT / "CHANGELOG.md",
}
"""Pages of the site that are files of the project's folder."""
NOTEBOOK = DOCS / "guides" / "notebook.ipynb"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s:]+)\)")  # of a file of the project; one with a colon leads elsewhere
PICTURE = re.compile(r"""!\[[^\]]*\]\(([^)\s:]+)\)|<img src="([^":]+)\"""")
FENCE = re.compile(r"(?ms)(^ *```.*?^ *```$)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the project's folder, the notebook, the reports and the pictures that lie outside `docs/`."""
    reports = sorted((ROOT / "reports").glob("*.html"))
    made = {uri: path.read_text(encoding="utf-8") for uri, path in PAGES.items()}
    made |= {"guides/notebook.md": notebook(), "reports.md": list_of(reports)}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for report in reports:
        files.append(File.generated(config, f"reports/{report.name}", abs_src_path=str(report)))
    for picture in outside(files):
        files.append(File.generated(config, of_project(picture), abs_src_path=str(picture)))
    return files


def outside(files: Files) -> set[Path]:
    """Return the pictures in the pages that lie outside `docs/`."""
    found = {
        target("".join(link), source(page.src_uri))
        for page in files.documentation_pages()
        for link in PICTURE.findall(page.content_string)
    }
    return {path for path in found if not path.is_relative_to(DOCS)}


def source(uri: str) -> Path:
    """Return the file behind a page of the site."""
    return PAGES.get(uri, DOCS / uri)


def target(link: str, page: Path) -> Path:
    """Return the file that a link of a page leads to."""
    return (page.parent / link.partition("#")[0]).resolve()


def of_project(path: Path) -> str:
    """Return a path as seen from the project's folder."""
    return path.relative_to(ROOT).as_posix()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let every link lead to a page of the site, or else to the file in the repository."""
    markdown = re.sub(r"(?m)^\[!\[.*\n", "", markdown)  # badges are pictures from elsewhere
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        mark, link = match.groups()
        if link.startswith("#"):
            return match[0]
        path, anchor = target(link, source(here)), link.partition("#")[2]
        uri = next((uri for uri, file in PAGES.items() if file == path), "")
        if path == NOTEBOOK:
            uri = "guides/notebook.md"
        elif not uri:
            uri = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else of_project(path)
        if not files.get_file_from_path(uri):
            return f"{mark}({config.extra['repository']}/{'tree' if path.is_dir() else 'blob'}/main/{of_project(path)})"
        relative = os.path.relpath(uri, Path(here).parent)
        return f"{mark}({relative}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(markdown)
    return "".join(part if FENCE.fullmatch(part) else LINK.sub(moved, part) for part in parts)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Render formulas as MathML, which browsers show without a script."""

    def formula(match: re.Match[str]) -> str:
        latex = html.unescape(match[2].strip()[2:-2])
        if match[1] == "span":
            return convert(latex)
        return f'<div class="formula" tabindex="0">{convert(latex, display="block")}</div>'

    return re.sub(r'(?s)<(span|div) class="arithmatex">(.*?)</\1>', formula, content)


def notebook() -> str:
    """Return the notebook as Markdown, with the outputs that are stored in it; a test runs it."""
    text = ""
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        if cell.cell_type == "markdown":
            text += f"{cell.source}\n\n"
            continue
        text += f"```python\n{cell.source}\n```\n\n"
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                text += f"![Output of the cell above](data:image/png;base64,{data['image/png'].strip()})\n\n"
            elif plain := output.get("text") or data.get("text/plain"):
                text += f"```text\n{plain.rstrip()}\n```\n\n"
    return text


def list_of(reports: list[Path]) -> str:
    """Return the page with the reports that have been built here."""
    text = (
        "# Reports\n\nA report is one offline page: claims in words, tables, figures, and every run behind a number. "
    )
    text += "`make report CONFIG=paper` builds one in about a minute.\n\n"
    return text + (
        "".join(f"* [{report.stem}](reports/{report.name})\n" for report in reports) or "None has been built here.\n"
    )
