"""The pages on datasets and models agree with the classes and are up to date."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from real_files import DATASETS

from clipnoise.cli.inventory import COLUMNS, dataset_page
from clipnoise.models.base import Model
from clipnoise.plugins import plugins

ROOT = Path(__file__).parents[2]


@cache
def rows() -> dict[str, list[str]]:
    """Read the table of the page, by dataset."""
    lines = [line for line in dataset_page().splitlines() if line.startswith("| [")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {cell[0].partition("]")[0][1:]: cell for cell in cells}


@cache
def models() -> dict[str, list[str]]:
    """Read which models the page names for each dataset."""
    sections = dataset_page().partition("## Raw files")[0].split("\n### ")[1:]
    return {
        section.partition("\n")[0]: section.partition("- Models: ")[2]
        .partition(".\n")[0]
        .split(", ")
        for section in sections
    }


def test_every_dataset_has_a_row_with_every_column() -> None:
    assert list(rows()) == list(models()) == list(DATASETS)
    for cells in rows().values():
        assert len(cells) == len(COLUMNS)
        assert all(cells)


# The model `table` takes your own data of the kind `table` alone.
@pytest.mark.parametrize("model", sorted({*plugins("clipnoise.models", Model)} - {"table"}))
def test_every_model_has_a_dataset(model: str) -> None:
    assert any(model in fitting for fitting in models().values())


def test_the_tasks_of_images_are_listed_with_their_models() -> None:
    cells = rows()["mnist"]
    assert "classification" in cells[2]
    assert "reconstruction" in cells[2]
    assert "autoencoder" in models()["mnist"]
    assert "55,000 / 5,000 / 10,000" in cells[1]
