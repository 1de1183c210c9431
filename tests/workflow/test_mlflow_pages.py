"""A user of MLflow's pages finds a study and compares its methods in a few clicks."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from recorded_runs import record, rows, spec
from reporting_data import run_row, write_table

from clipnoise.report.means import mean_views
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS
from clipnoise.tracking import MeansTable, Membership, note, sync
from clipnoise.tracking.ui import serve

PATIENCE = 40  # seconds for a page on a busy machine
STUDY = "handwriting"

pytestmark = pytest.mark.browser


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with two methods at two ε and three seeds, one run of which diverged."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = dict(os.environ)
    runs, table = {}, []
    for method, offset in (("dp-sgd", 0.0), ("dp-adambc", 0.03)):
        for epsilon in (1.0, 8.0):
            for seed in range(3):
                run = spec(method, epsilon=epsilon, seed=seed)
                lost = (method, epsilon, seed) == ("dp-sgd", 1.0, 2)
                record(tmp_path, run, offset=offset, status="diverged" if lost else "completed")
                runs[run.hash] = Membership(study=STUDY, studies=(STUDY,), panel="main")
                place = {"dataset": "toy", "model": "line", "budget": f"eps={epsilon:g}"}
                accuracy = rows(run, offset=offset)[-1]["test_accuracy"]
                status = "diverged" if lost else "completed"
                told = {"method": method, "seed": seed, "test_accuracy": accuracy, "status": status}
                table.append(run_row(**place, **told))
    planned = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, table))
    means = mean_views(planned, STUDY, "report.pdf", "")
    description = "**Handwritten digits**\n\nTwo methods at two budgets."
    note(tmp_path, runs, {STUDY: description})
    assert sync(tmp_path, tables=[MeansTable(STUDY, [], lambda: means)]).added == 12
    os.environ.clear()
    os.environ.update(before)
    return tmp_path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _text_with(browser: Any, *wanted: str) -> str:
    """Wait until the page shows all of the texts, and return all it shows."""
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(window: Any) -> str | None:
        text = str(window.execute_script("return document.body ? document.body.innerText : ''"))
        return text if all(word in text for word in wanted) else None

    def lacking(text: str) -> str:
        return f"the page lacks {[word for word in wanted if word not in text]}:\n{text}"

    from selenium.common.exceptions import TimeoutException

    try:
        return str(WebDriverWait(browser, PATIENCE).until(shown))
    except TimeoutException:
        text = browser.execute_script("return document.body ? document.body.innerText : ''")
        browser.save_screenshot(str(Path(os.environ.get("TMPDIR", "/tmp")) / "mlflow-page.png"))
        pytest.fail(lacking(text))


def _click(browser: Any, link: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    found = WebDriverWait(browser, PATIENCE).until(lambda w: w.find_elements("link text", link))
    browser.execute_script("arguments[0].click()", found[0])
    browser.switch_to.window(browser.window_handles[-1])  # links of a description open a new tab


@pytest.mark.long
def test_a_study_can_be_found_and_its_methods_compared(results: Path, browser: Any) -> None:
    port = _free_port()
    with serve(results, port=port, log=results / "server.log") as address:
        browser.get(f"{address}/#/experiments")
        _text_with(browser, STUDY)
        _click(browser, STUDY)
        _text_with(browser, "Handwritten digits")
        _click(browser, "runs, best first")
        text = _text_with(browser, "final/test_accuracy", "privacy/epsilon", "12 matching runs")
        browser.save_screenshot(str(results / "runs.png"))
        names = [line for line in text.splitlines() if " · seed " in line]
        assert len(names) == 12
        assert names[0] == "dp-adambc · toy · line · ε=8 · seed 2"  # the best comes first
        assert names[-1] == "dp-sgd · toy · line · ε=1 · seed 2"  # the one that diverged
        _click(browser, "means over seeds")
        text = _text_with(browser, "mean/test_accuracy", "4 matching runs")
        browser.save_screenshot(str(results / "means.png"))
        means = {
            "dp-adambc · toy · line · ε=1": ("0.835", "3 of 3"),
            "dp-sgd · toy · line · ε=1 (2/3 runs)": ("0.8025", "2 of 3"),
            "dp-adambc · toy · line · ε=8": ("0.9225", "3 of 3"),
            "dp-sgd · toy · line · ε=8": ("0.8925", "3 of 3"),
        }
        assert [line for line in text.splitlines() if " · toy · " in line] == list(means)
        for mean, runs in means.values():
            assert mean in text
            assert runs in text
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", urlsplit(address).port or 0)) != 0
