"""The data that the tests of the judge read."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from clipnoise.data.digits import Digits, DigitsUsers

    folder = tmp_path_factory.mktemp("cache")
    for dataset in (Digits(), DigitsUsers()):
        dataset.prepare(folder)
    return folder
