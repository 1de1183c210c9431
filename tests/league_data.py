"""Published files of the league for tests: rows in their schema, and tasks with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reporting_data import run_row, write_table

from clipnoise.run.correctness import packed
from clipnoise.run.outcome import Chance
from clipnoise.studies.columns import LEAGUE

DATA_SETS = (
    *("digits", "adult", "compas", "fair", "letter", "satellite", "shuttle", "german-credit"),
    *("diamonds", "flights", "rand-health", "newsgroups"),
)
RIGHT = np.arange(10) % 5 > 0  # eight of ten


def row(label: str = "dp-sgd", **changes: Any) -> dict[str, Any]:
    values = {
        **{"panel": "confirm", "epsilon": 3.0, "claim": "guarantee", "search": 1, "method": label},
        **{"test_examples": 10, "test_accuracy": 0.8, "validation_accuracy": 0.7},
        **{"correct": packed(RIGHT), "training_code": f"code of {label}", "label": label},
        **changes,
    }
    given = {name: one for name, one in run_row(**values).items() if name in LEAGUE}
    given.pop("dataset")
    return given | values


def published(folder: Path, **tasks: list[dict[str, Any]]) -> Path:
    """Write the files of tasks; those whose rows name no data set have one each."""
    for number, (name, rows) in enumerate(tasks.items()):
        of = {"dataset": DATA_SETS[number]}
        kept = [{key: x for key, x in (of | one).items() if key in LEAGUE} for one in rows]
        write_table(folder / f"{name}.parquet", LEAGUE, kept)
    return folder


def confirmed(
    means: Mapping[str, float],
    *,
    seed: int = 0,
    epsilons: tuple[float, ...] = (3.0,),
    searches: int = 12,
    examples: int = 500,
    spread: float = 0.02,
) -> list[dict[str, Any]]:
    """Return runs of methods with these accuracies, two for each search.

    SGD and Adam are those without privacy, and have the accuracy on validation examples, too.
    """
    rng, rows = np.random.default_rng(seed), []
    level = Chance(name="majority class", levels={"test_accuracy": 0.5})
    for label, mean in means.items():
        private = label not in ("sgd", "adam")
        for epsilon in epsilons if private else (None,):
            for number in range(2 * searches):
                right = rng.random(examples) < mean + spread * rng.normal()
                values: dict[str, Any] = {
                    "seed": number,
                    "search": number // 2 + 1,
                    "test_examples": examples,
                }
                values |= {"test_accuracy": right.mean(), "correct": packed(right)}
                values |= {"epsilon": epsilon, "claim": "guarantee" if private else "non-private"}
                rows.append(row(label, **values, chance=level, validation_accuracy=mean))
    return rows


def cells_below(page: str, title: str) -> list[list[str]]:
    """Return the cells of a table of a page by its title, without its heads."""
    table = page.split(f"### {title}\n")[1].split("\n#")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
