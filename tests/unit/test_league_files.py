"""The league's published files: what they hold, what is refused, and the page printed from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting_data import run_row, write_table

from clipnoise.errors import UserError
from clipnoise.report.league import (
    confirmed_runs,
    league_page,
    published_rows,
    read_league,
    screenings,
    settings,
)
from clipnoise.run.correctness import packed
from clipnoise.run.fingerprint import training_code
from clipnoise.run.outcome import Chance
from clipnoise.run.spec import from_mapping
from clipnoise.studies.columns import LEAGUE
from clipnoise.studies.study import load_study

STUDIES = Path(__file__).parents[2] / "workflow" / "studies"
RIGHT = np.arange(10) % 5 > 0  # eight of ten


def row(label: str = "dp-sgd", **changes: Any) -> dict[str, Any]:
    values = {
        **{"panel": "confirm", "epsilon": 3.0, "claim": "guarantee", "search": 1, "method": label},
        **{"test_examples": 10, "test_accuracy": 0.8, "validation_accuracy": 0.7},
        **{"correct": packed(RIGHT), "training_code": f"code of {label}", "label": label},
        **changes,
    }
    return {name: one for name, one in run_row(**values).items() if name in LEAGUE} | values


def published(folder: Path, **tasks: list[dict[str, Any]]) -> Path:
    for name, rows in tasks.items():
        kept = [{key: value for key, value in one.items() if key in LEAGUE} for one in rows]
        write_table(folder / f"{name}.parquet", LEAGUE, kept)
    return folder


def test_files_of_one_training_code_are_read_together(tmp_path: Path) -> None:
    found = read_league(published(tmp_path, adult=[row()], digits=[row(), row("disk")]))
    assert list(found) == ["adult", "digits"]
    assert list(found["digits"]["label"]) == ["dp-sgd", "disk"]


def test_files_whose_training_code_differs_for_a_method_are_refused(tmp_path: Path) -> None:
    other = row("disk", training_code="other")
    published(tmp_path, adult=[row(), row("disk")], digits=[row(), other])
    said = r"disk was trained by other code in digits.parquet \(other\) than in adult.parquet"
    with pytest.raises(UserError, match=said):
        read_league(tmp_path)
    # another method's code is its own
    published(tmp_path, digits=[row(), row("dp-lion", training_code="other")])
    assert len(read_league(tmp_path)) == 2


def test_a_folder_without_files_says_how_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no task is published there: `clipnoise league publish"):
        read_league(tmp_path)


def test_bits_that_disagree_with_the_accuracy_are_refused(tmp_path: Path) -> None:
    rows = [row(), row(seed=2, status="diverged", correct=None, test_accuracy=None)]
    runs = read_league(published(tmp_path, adult=rows))["adult"]
    first, second = confirmed_runs(runs, "confirm")["right"]
    assert np.array_equal(first, RIGHT)
    assert second is None
    with pytest.raises(UserError, match=r"0\.8 of its bits are set, but its accuracy is 0\.7"):
        confirmed_runs(runs.assign(test_accuracy=0.7), "confirm")
    with pytest.raises(UserError, match="damaged: the bits are not those of 20 examples"):
        confirmed_runs(runs.assign(test_examples=20), "confirm")


def test_only_guarantees_are_screened_and_a_diverged_run_is_the_worst(tmp_path: Path) -> None:
    rows = [
        row(panel="screen", validation_accuracy=0.6),
        row("disk", panel="screen", status="diverged", validation_accuracy=None),
        row("jme-adam", panel="screen", claim="nominal"),
        row("sgd", panel="screen", claim="non-private", epsilon=None),
        row("dp-lion"),
    ]
    runs = read_league(published(tmp_path, adult=rows))["adult"]
    found = [(one.label, one.epsilon, one.score) for one in screenings(runs, "screen")]
    assert found == [("dp-sgd", 3, 0.6), ("disk", 3, 0.0)]


def test_the_page_has_a_table_for_each_panel_with_the_best_method_first(tmp_path: Path) -> None:
    once = {"panel": "screen", "search": None}
    rows = [
        row(**once, test_accuracy=0.5),
        row("disk", **once, test_accuracy=0.75),
        row("disk", **once, seed=2, status="diverged", test_accuracy=None),
        row("sgd", **once, claim="non-private", epsilon=None, test_accuracy=0.9),
    ]
    page = league_page(read_league(published(tmp_path, adult=rows)))
    table = page.split("### adult, screen")[1]
    lines = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["method", "ε = 3", "diverged"],
        ["---", "---:", "---:"],
        ["dp-sgd", "50.00", "0"],
        ["disk", "37.50", "1"],
        ["sgd", "90.00", "0"],
    ]


def test_a_task_with_missing_runs_is_not_published(tmp_path: Path) -> None:
    study = load_study(STUDIES / "league" / "german-credit.yaml")
    said = r"runs \d+ are missing and 0 were trained by other code. Run: snakemake .*german-credit"
    with pytest.raises(UserError, match=said):
        published_rows(study, tmp_path)


def test_the_training_code_depends_on_the_method_and_not_on_the_data() -> None:
    def spec(method: str, dataset: str = "digits", model: str = "logistic") -> Any:
        values = {"id": method, "learning_rate": 1.0, "clip_norm": 1.0}
        training = {"expected_batch_size": 50, "steps": 2}
        privacy = {"epsilon": 1.0, "delta": 1e-5}
        return from_mapping(
            {
                **{"dataset": dataset, "model": model, "method": values, "privacy": privacy},
                **{"training": training, "seed": 1},
            }
        )

    one = training_code(spec("dp-sgd"))
    assert one == training_code(spec("dp-sgd", "synthetic", "mlp"))
    assert one != training_code(spec("dp-adambc"))


def league_of(folder: Path, **means: float) -> Path:
    """Publish runs of methods with these accuracies, of twelve searches with two seeds."""
    rng, rows = np.random.default_rng(0), []
    for label, mean in means.items():
        for seed in range(24):
            right = rng.random(500) < mean
            values = {"seed": seed, "search": seed // 2 + 1, "test_examples": 500}
            values |= {"test_accuracy": right.mean(), "correct": packed(right)}
            level = Chance(name="majority class", levels={"test_accuracy": 0.5})
            rows.append(row(label, **values, chance=level))
    return published(folder, adult=rows)


def test_the_page_says_who_can_be_the_best(tmp_path: Path) -> None:
    better = {"disk": 0.84, "dp-lion": 0.6, "dp-sgd": 0.7}
    page = league_page(read_league(league_of(tmp_path, **better)))
    table = page.split("### adult, ε = 3: confirmed")[1].split("###")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| d")]
    assert [(row[0].strip("| "), row[-1].strip("| ")) for row in rows] == [
        ("disk", "yes"),
        ("dp-sgd", "no"),
        ("dp-lion", "no"),
    ]
    assert float(rows[0][1]) - float(rows[1][1]) == pytest.approx(float(rows[0][2]), abs=0.011)
    assert rows[0][4] == "0 of 24"


def test_a_method_without_a_search_is_paired_with_the_others_by_its_seeds(tmp_path: Path) -> None:
    runs = read_league(league_of(tmp_path, disk=0.8, other=0.7))["adult"]
    without = runs.assign(search=runs["search"].where(runs["label"] != "other"))
    (whole,), (one,) = settings({"adult": runs}).values(), settings({"adult": without}).values()
    assert whole.methods == one.methods == ("disk", "other")
    assert np.array_equal(whole.right, one.right)


def test_a_task_that_lacks_a_confirmed_run_has_no_page(tmp_path: Path) -> None:
    runs = read_league(league_of(tmp_path, disk=0.8, other=0.7))["adult"]
    with pytest.raises(UserError, match="every method needs one of each"):
        league_page({"adult": runs.drop(index=3)})
