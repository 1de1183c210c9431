"""Puts this folder on the import path, for helpers that several test folders share."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("CLIPNOISE_PLUGINS", "")  # the tests are about what clipnoise itself has


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files of few, long tests, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.parent.name not in {"slurm", "workflow"})
