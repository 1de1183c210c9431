"""Puts this folder on the import path, for helpers that several folders share; a browser, data."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from selection import KEPT, kept, mark_long_cases

# The same cases in every run: what fails once fails again.
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1900,1000",
)

os.environ.setdefault("CLIPNOISE_PLUGINS", "")  # the tests are about what clipnoise itself has


@pytest.hookimpl(tryfirst=True)  # before those that are long are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the files of few, long tests, so that no worker is left with one at the end."""
    mark_long_cases(items)
    config.stash[KEPT] = kept(items)

    def few_and_long(path: Path) -> bool:
        return path.parent.name in {"slurm", "workflow"} or path.stem.startswith("test_judge_")

    items.sort(key=lambda item: not few_and_long(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without searches for garbage, and leave all of it out of later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Free them in the usual order."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a headless Chromium; skip where there is none, unless it is required."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        reason = "needs Chromium and its driver (Debian: apt install chromium chromium-driver)"
        if os.environ.get("CLIPNOISE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    driven = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driven
    driven.quit()


@contextmanager
def window(chromium: Any) -> Iterator[Any]:
    """Open a window in which nothing is emulated yet, and close it with what it has opened."""
    before, current = {*chromium.window_handles}, chromium.current_window_handle
    chromium.switch_to.new_window("window")
    chromium.set_window_size(1900, 1000)
    chromium.get_log("browser")  # what earlier tests have left there
    yield chromium
    for opened in {*chromium.window_handles} - before:  # by links, too
        chromium.switch_to.window(opened)
        chromium.close()
    chromium.switch_to.window(current)


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """Open a window for a test."""
    with window(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_browser(chromium: Any) -> Iterator[Any]:
    """Open a window for the tests of a file, which change nothing in it."""
    with window(chromium) as opened:
        yield opened


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of prepared datasets: the digits, and those of users. Tests do not change it."""
    from clipnoise.data.digits import Digits, DigitsUsers

    folder = tmp_path_factory.mktemp("cache")
    for dataset in (Digits(), DigitsUsers()):
        dataset.prepare(folder)
    folder.chmod(0o755)  # some commands are run as another user
    return folder
