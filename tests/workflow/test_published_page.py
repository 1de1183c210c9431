"""A page of results works without a network: it sorts, filters, and fits a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reporting_data import run_row, write_study

from clipnoise.cli import main

pytestmark = [pytest.mark.browser, pytest.mark.long]  # test_site.py has pages in a browser, too
LEVELS = {"sgd": 0.95, "dp-sgd": 0.80, "dp-sgdm": 0.85, "dp-adam": 0.70, "dp-adamw": 0.92}
STUDY = {
    "title": "Two tasks",
    "description": "What is compared.",
    "defaults": {"seeds": [1, 2, 3], "methods": ["sgd", "dp-sgd"], "epsilons": [1]},
    "panels": {
        "first": {"title": "First task", "datasets": ["digits"], "models": ["logistic"]},
        "second": {"title": "Second task", "datasets": ["synthetic"], "models": ["logistic"]},
    },
    "report": [
        {"kind": "overview", "title": "All methods", "together": True},
        {"kind": "table", "title": "{panel}"},
    ],
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a study with two tasks."""
    folder = tmp_path_factory.mktemp("published")
    rows = [
        run_row(
            panel=panel,
            dataset=dataset,
            method=method,
            budget="non-private" if method == "sgd" else "eps=1",
            seed=seed,
            test_accuracy=level + 0.001 * seed * (1 + (method == "dp-sgdm")),
        )
        for panel, dataset in (("first", "digits"), ("second", "synthetic"))
        for method, level in LEVELS.items()
        for seed in (1, 2, 3)
    ]
    study, runs, _ = write_study(folder, rows, STUDY)
    words = ["publish", "--study", str(study), "--runs", str(runs), "--out", str(folder / "out")]
    assert main(words) == 0
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def page(published: Path, shared_browser: Any) -> Any:
    """Return a browser that shows the page, for tests that only read it."""
    return show(published, shared_browser)


@pytest.fixture
def own_page(published: Path, browser: Any) -> Any:
    """Return a browser that shows the page, for a test that changes it."""
    return show(published, browser)


def show(published: Path, browser: Any) -> Any:
    """Open the page without a network, and wait until it is drawn."""
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    browser.get(published.as_uri())
    _wait(browser, "return document.body.dataset.drawn === 'yes'")
    _wait(browser, "return document.querySelectorAll('#results tbody tr').length === 10")
    return browser


def _wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 40).until(lambda window: window.execute_script(condition))


def _column(browser: Any, number: int) -> list[str]:
    cells = (
        f"[...document.querySelectorAll('#results tbody tr')].map(r => r.cells[{number}].innerText)"
    )
    return list(browser.execute_script(f"return {cells}"))


def test_the_table_is_sorted_and_filtered(own_page: Any) -> None:
    assert set(_column(own_page, 0)) == {"First task", "Second task"}
    order = own_page.find_elements("css selector", ".dt-column-order")[3]
    own_page.execute_script("arguments[0].click()", order)
    _wait(
        own_page,
        "return document.querySelector('#results tbody tr').cells[1].innerText === 'dp-adam'",
    )
    values = [float(text) for text in _column(own_page, 3)]
    assert values == sorted(values)
    search = own_page.find_element("css selector", "input[placeholder=Method]")
    search.send_keys("dp-sgdm")
    _wait(own_page, "return document.querySelectorAll('#results tbody tr').length === 2")
    assert set(_column(own_page, 1)) == {"dp-sgdm"}


def test_differences_have_minus_signs_and_dp_sgd_has_none_to_itself(page: Any) -> None:
    shown = dict(zip(_column(page, 1), _column(page, 7), strict=True))
    assert shown == {
        "sgd": "",
        "dp-sgd": "",
        "dp-sgdm": "5.20",
        "dp-adam": "−10.00",
        "dp-adamw": "12.00",
    }


def test_a_column_without_a_value_is_left_out_and_a_missing_number_is_an_empty_cell(
    page: Any,
) -> None:
    heads = page.execute_script(
        "return [...document.querySelectorAll('.dt-scroll-head thead input')]"
        ".map(box => box.placeholder)"
    )
    cells = {text for column in range(len(heads)) for text in _column(page, column)}
    assert "σ" in heads
    assert "ε with tuning" not in heads
    assert not cells & {"None", "NaN", "null"}


def test_a_filter_is_as_wide_as_the_name_in_it(page: Any) -> None:
    """Browsers make every box equally wide, which moves most columns of numbers out of sight."""
    boxes = page.execute_script(
        "return [...document.querySelectorAll('.dt-scroll-head thead input')]"
        ".map(box => [box.placeholder, box.getBoundingClientRect().width, box.scrollWidth])"
    )
    widths = {name: width for name, width, _ in boxes}
    assert {"Task", "ε", "Best", "Hyper-parameters"} <= widths.keys()
    assert widths["ε"] < 70 < 100 < widths["Hyper-parameters"]
    assert all(needed <= width for _, width, needed in boxes)


def test_the_name_of_a_column_stays_when_one_types_into_its_box(own_page: Any) -> None:
    name = (
        "return document.querySelector('.dt-scroll-head input[placeholder=Method]')"
        ".closest('th').innerText.trim()"
    )
    _wait(own_page, f"{name} === 'Method'")
    own_page.find_element("css selector", "input[placeholder=Method]").send_keys("dp-sgdm")
    assert own_page.execute_script(name) == "Method"


def test_the_columns_that_decide_are_in_view_on_a_laptop(own_page: Any) -> None:
    screen = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    own_page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    own_page.refresh()
    _wait(own_page, "return document.querySelectorAll('.dt-scroll-head thead input').length > 9")
    ends = own_page.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.dt-scroll-head thead input')]"
        ".map(box => [box.placeholder, box.getBoundingClientRect().right]))"
    )
    assert all(ends[name] < 1300 for name in ("Best", "Δ DP-SGD", "low", "high", "Time"))


def test_a_chart_shows_differences_and_values_under_the_pointer(page: Any) -> None:
    (labels,) = page.execute_script(
        "return [...document.querySelectorAll('.chart svg')].map(svg => svg.textContent)"
    )
    assert "dp-adamwdp-sgdmdp-adam" in labels  # best first: 12 is more than 5.2
    said = page.execute_script(
        "return [...document.querySelectorAll('.chart svg [aria-label]')]"
        ".map(mark => mark.getAttribute('aria-label'))"
    )
    assert any("dp-sgdm" in text and "5.2" in text for text in said)


def test_the_overview_names_every_private_method_and_fits_its_columns(page: Any) -> None:
    rows = page.execute_script(
        "return [...document.querySelectorAll('.overview tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText))"
    )
    heads = page.execute_script(
        "return [...document.querySelectorAll('.overview thead tr:last-child th')]"
        ".map(cell => cell.innerText)"
    )
    assert heads == ["method", "ε = 1", "worst", "best", "time"]
    assert rows == [
        ["dp-sgd", "0.0", "0.0", "0.0", "1.00"],
        ["dp-sgdm", "+5.2", "+5.2", "+5.2", "1.00"],
        ["dp-adam", "−10.0", "−10.0", "−10.0", "1.00"],
        ["dp-adamw", "+12.0", "+12.0", "+12.0", "1.00"],
    ]


def test_nothing_is_fetched_and_nothing_fails(page: Any) -> None:
    fetched = page.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [name for name in fetched if not name.startswith(("blob:", "data:", "file:"))] == []
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_it_is_dark_where_the_reader_prefers_that(own_page: Any) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert own_page.execute_script(colour) == "rgb(255, 255, 255)"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    own_page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    _wait(own_page, "return document.documentElement.classList.contains('dark')")
    assert own_page.execute_script(colour) == "rgb(22, 24, 28)"
    _wait(
        own_page, "return !document.querySelector('.chart .vega svg').outerHTML.includes('#222222')"
    )


def test_a_phone_shows_it_without_scrolling_sideways(own_page: Any) -> None:
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    own_page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    own_page.refresh()
    _wait(own_page, "return document.body.dataset.drawn === 'yes'")
    assert own_page.execute_script("return document.documentElement.scrollWidth") <= 390
