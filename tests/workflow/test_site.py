"""The documentation builds as a site: no dead links, every page in reach, readable on a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clipnoise.cli import main
from clipnoise.cli.program import USERS

ROOT = Path(__file__).parents[2]
WRITTEN = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
PAGES = sorted({*WRITTEN, Path("commands.md")})  # which is written when the site is built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy, with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    assert main(["--markdown", str(folder / "docs" / "commands.md")]) == 0
    words = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def _built(site: Path, page: Path) -> Path:
    return site / (page.parent if page.name == "index.md" else page.with_suffix("")) / "index.html"


def test_every_page_is_in_the_navigation() -> None:
    def pages(entries: Any) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        values = entries.values() if isinstance(entries, dict) else entries
        return [page for value in values for page in pages(value)]

    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert sorted(pages(project["nav"])) == sorted(map(str, PAGES))


@pytest.mark.long
def test_every_page_is_built_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in PAGES:
        text = _built(site, page).read_text()
        assert re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=.https?:", text) == [], page


def test_the_python_page_holds_the_docstrings(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    assert "clipnoise.private" in text
    assert "Run a recorded stream through a method in float64" in text
    assert text.count("&gt;&gt;&gt; </span>") > 5, "the examples are not shown as code"


def test_no_list_of_a_page_runs_on_in_its_paragraph(site: Path) -> None:
    """Without an empty line above it, the first item is one more sentence."""
    runs_on = re.compile(r"<p>(?:(?!</p>).)*\n[-*] .*", re.DOTALL)
    assert runs_on.match("<p>A <em>text</em>\n- and a list</p>")
    for page in PAGES:
        assert not runs_on.search(_built(site, page).read_text()), page


def test_the_page_of_commands_explains_every_command(site: Path) -> None:
    text = (site / "commands" / "index.html").read_text()
    assert [name for name in USERS if f"clipnoise {name}" not in text] == []


def _open(browser: Any, page: Path, width: int) -> None:
    """Open a page, and wait until the theme has wrapped each table, so that it can be scrolled."""
    from selenium.webdriver.support.ui import WebDriverWait

    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())
    wrapped = (
        "return [...document.querySelectorAll('.md-content table:not([class])')]"
        ".every(table => table.closest('.md-typeset__scrollwrap'))"
    )
    WebDriverWait(browser, 40).until(lambda window: window.execute_script(wrapped))


@pytest.mark.browser
@pytest.mark.quick(page=[Path("commands.md"), Path("study-keys.md")])  # the widest, of two forms
@pytest.mark.parametrize("page", PAGES, ids=str)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_the_width_of_a_phone_and_of_a_desktop(
    site: Path, browser: Any, width: int, page: Path
) -> None:
    _open(browser, _built(site, page), width)
    assert browser.execute_script("return document.body.scrollWidth") <= width
    assert browser.execute_script("return document.querySelector('h1').innerText")
    wraps = (
        "return [...document.querySelectorAll('pre code')]"
        ".map(code => getComputedStyle(code).whiteSpace)"
    )
    assert set(browser.execute_script(wraps)) <= {"pre"}, "code without its indents"


@pytest.mark.browser
@pytest.mark.quick(page=[Path("papers/dp-pmlf.md")])
@pytest.mark.parametrize("page", [one for one in PAGES if one.parts[0] == "papers"], ids=str)
def test_no_table_of_a_paper_is_cut_off_on_a_desktop(site: Path, browser: Any, page: Path) -> None:
    _open(browser, _built(site, page), 1300)
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('.md-content .md-typeset__scrollwrap')]"
        ".map(place => { const table = place.querySelector('table');"
        " return Math.max(table.scrollWidth - table.clientWidth,"
        " place.scrollWidth - place.clientWidth); })"
    )
    assert max(beyond) <= 0
