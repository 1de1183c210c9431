"""The verdict on page one: who is best, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from reporting_data import run_row, write_table
from scipy import stats

from clipnoise.fields import parse
from clipnoise.report.baseline import baseline_of, contended, cost_ratio
from clipnoise.report.hyperparameters import choices_data, clarity
from clipnoise.report.records import read_runs
from clipnoise.report.verdict import VerdictSection, audit_note, verdict_data
from clipnoise.studies.columns import RUN_COLUMNS, FoundChoice

# Test accuracies of five seeds, in ten-thousandths.
BASE = (9000, 9040, 8970, 9020, 8990, 9010)
BETTER = tuple(value + gain for value, gain in zip(BASE, (100, 104, 97, 102, 99, 98), strict=True))
SIMILAR = tuple(value + gain for value, gain in zip(BASE, (60, -50, 40, -30, 5, -10), strict=True))


def frame(folder: Path, levels: dict[str, tuple[int, ...]], **changes: Any) -> pd.DataFrame:
    """Return runs of a panel, by method; `changes` may hold a mapping by method."""
    rows = [
        run_row(
            **{
                **{"method": method, "seed": seed, "test_accuracy": value / 1e4},
                **{k: v[method] if isinstance(v, dict) else v for k, v in changes.items()},
            }
        )
        for method, values in levels.items()
        for seed, value in enumerate(values, 1)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def texts(section: VerdictSection) -> dict[str, str]:
    """Return the notes of a verdict, by their heads."""
    return {one.title: one.paragraphs[0] for one in section.notes}


def said(runs: pd.DataFrame, watermark: str = "") -> dict[str, str]:
    """Return the one row of a verdict, by its heads."""
    table = verdict_data(runs, watermark).table
    (row,) = table.rows
    return dict(zip(table.heads, row, strict=True))


def test_the_best_method_is_named_with_its_lead_and_interval(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER, "dp-pmlf": SIMILAR})
    row = said(runs)
    assert (row["best mean"], row["verdict"]) == ("dp-adam", "best of 3")
    gains = [(b - a) / 100 for a, b in zip(BASE, BETTER, strict=True)]
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert row["over dp-sgd"] == f"{sum(gains) / 6:.2f} [{low:.2f}, {high:.2f}]"
    assert row["over the next best"].endswith("(dp-pmlf)")
    summary = verdict_data(runs, "").summary
    assert summary == "In one setting dp-adam is shown to be better than all others."


def test_the_winners_of_several_settings_are_named_with_their_counts(tmp_path: Path) -> None:
    won = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER})
    lost = frame(tmp_path, {"dp-sgd": BETTER, "dp-adam": BASE})
    same = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": SIMILAR})
    parts = [won, won, lost, same]
    every = pd.concat([one.assign(dataset=f"set-{n}") for n, one in enumerate(parts)])
    words = "is shown to be better than all others"
    found = verdict_data(every, "").summary
    by_chance = "If no methods differed, chance would show one in at most {} settings on average."
    assert found == (
        f"In 3 of 4 settings one method {words}: dp-adam in 2 and dp-sgd in 1. "
        + by_chance.format(0.2)
    )
    alone = every[every["dataset"] != "set-2"]
    said_alone = f"In 2 of 3 settings dp-adam {words}. {by_chance.format(0.15)}"
    assert verdict_data(alone, "").summary == said_alone
    equal = pd.concat([same.assign(dataset=f"set-{n}") for n in range(2)])
    none = "In none of 2 settings is one method shown to be better than all others."
    assert verdict_data(equal, "").summary == none


def with_one_diverged(runs: pd.DataFrame, *methods: str) -> pd.DataFrame:
    """Return runs of which the first of some methods diverged."""
    first = runs["method"].isin(methods) & (runs["seed"] == 1)
    return runs.assign(status=runs["status"].mask(first, "diverged"))


def test_a_method_is_not_called_best_where_all_others_diverged(tmp_path: Path) -> None:
    """The others were not compared with it; their surviving runs are better here."""
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER, "dp-pmlf": BETTER})
    found = verdict_data(with_one_diverged(runs, "dp-adam", "dp-pmlf"), "")
    assert found.summary == "1 setting cannot be judged."
    (row,) = found.table.rows
    assert "none: every other method has diverged runs" in row


def test_the_best_of_those_that_never_diverged_is_called_so(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER, "dp-pmlf": BETTER})
    found = verdict_data(with_one_diverged(runs, "dp-pmlf"), "")
    assert found.summary == (
        "In one setting dp-adam is shown to be better than all others that never diverged."
    )
    (row,) = found.table.rows
    assert "best of 2 that never diverged" in row


def test_the_section_on_choices_is_pointed_to_only_where_there_is_one(tmp_path: Path) -> None:
    given = verdict_data(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}), "")
    assert texts(given)["Hyper-parameters."] == "Given in the study file."
    tuned = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, configurations=3, tuning_runs=3)
    assert "see “Choice of hyper-parameters”" in texts(verdict_data(tuned, ""))["Hyper-parameters."]
    assert "`" not in " ".join(texts(given).values())


def test_methods_that_are_equal_in_every_seed_share_the_best_mean(tmp_path: Path) -> None:
    levels = {"dp-sgd": BASE, "dp-adam": BETTER, "stp-adam": BETTER}
    row = said(frame(tmp_path, levels))
    assert row["best mean"] == "dp-adam; stp-adam (equal in every seed)"
    assert row["over the next best"].endswith("(dp-sgd)")
    assert row["verdict"] == "not distinguished from stp-adam"
    many = {**levels, **dict.fromkeys(("dp-pmlf", "dp-adambc"), BETTER)}
    assert said(frame(tmp_path, many))["best mean"] == "dp-adam; 3 others (equal in every seed)"


def test_where_nothing_differs_no_method_is_called_best(tmp_path: Path) -> None:
    row = said(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": SIMILAR}))
    assert (row["best mean"], row["verdict"]) == ("dp-adam", "no difference found")
    third = {"dp-sgd": BASE, "dp-adam": SIMILAR, "dp-pmlf": SIMILAR[::-1]}
    assert said(frame(tmp_path, third))["verdict"] == "no difference found among 3"


def test_of_many_settings_those_without_a_difference_are_counted_only(tmp_path: Path) -> None:
    same = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": SIMILAR})
    many = [same.assign(dataset=f"set-{number}") for number in range(30)]
    found = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER})
    data = verdict_data(pd.concat([*many, found]), "")
    assert len(data.table.rows) == 1
    assert data.summary.startswith("In 1 of 31 settings")
    assert texts(data)["Not listed."] == "30 settings where no difference was found."


def test_those_that_cannot_be_told_from_the_highest_mean_are_named(tmp_path: Path) -> None:
    close = tuple(value + off for value, off in zip(BETTER, (-4, 3, 5, -6, 1, -2), strict=True))
    row = said(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER, "dp-pmlf": close}))
    assert row["verdict"] == "not distinguished from dp-pmlf"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"status": {"dp-sgd": "completed", "dp-adam": "missing"}}, "none yet: runs are missing"),
        ({"status": "diverged"}, "none: every method has diverged runs"),
        ({"claim": {"dp-sgd": "guarantee", "dp-adam": "nominal"}}, "none: nothing comparable"),
    ],
)
def test_a_setting_without_a_verdict_says_why(
    tmp_path: Path, changes: dict[str, Any], verdict: str
) -> None:
    row = said(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, **changes))
    assert row["verdict"].startswith(verdict)


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_few_seeds_decide_nothing(tmp_path: Path, seeds: int) -> None:
    runs = frame(tmp_path, {"dp-sgd": BASE[:seeds], "dp-adam": BETTER[:seeds]})
    assert said(runs)["verdict"] == "none: cannot be told with fewer than 6 seeds"
    assert verdict_data(runs, "").summary == "1 setting cannot be judged."


def test_a_smoke_run_is_not_evidence(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER})
    assert said(runs, "smoke run: not evidence")["verdict"] == "not evidence"
    assert verdict_data(runs, "smoke run: not evidence").summary.startswith("No verdict")


def test_what_does_not_compete_is_named(tmp_path: Path) -> None:
    levels = {"dp-sgd": BASE, "dp-adam": BETTER, "dp-pmlf": BETTER, "jme-adam": BETTER}
    changes: dict[str, Any] = {
        "claim": {**dict.fromkeys(levels, "guarantee"), "dp-pmlf": "nominal"},
        "adjacency": {**dict.fromkeys(levels, "add-remove"), "jme-adam": "replace"},
    }
    notes = texts(verdict_data(frame(tmp_path, levels, **changes), ""))
    assert notes["Left out."] == "dp-pmlf (nominal ε) and jme-adam (replace adjacency)."


def test_variants_of_one_method_are_no_comparison_of_methods(tmp_path: Path) -> None:
    rows = [run_row(method="lp-dpsgd", label=label, seed=seed) for label in "ab" for seed in (1, 2)]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    assert verdict_data(runs, "").summary == ""


def test_of_a_loss_the_lowest_is_best_and_the_lead_is_positive(tmp_path: Path) -> None:
    rows = [
        {**run_row(method=method, seed=seed, test_loss=loss + 0.001 * place), "test_accuracy": ""}
        for method, loss, places in (("dp-sgd", 0.5, (1, 2, 3)), ("dp-adam", 0.25, (3, 2, 1)))
        for seed, place in enumerate(places, 1)
    ]
    row = said(read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows)))
    assert row["best mean"] == "dp-adam"
    assert row["over dp-sgd"].startswith("0.2500 [")


def test_examples_and_the_error_of_the_test_set_stand_beside_the_verdict(tmp_path: Path) -> None:
    data = verdict_data(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}), "").data
    (row,) = data.rows
    found = dict(zip(data.heads, row, strict=True))
    assert (found["parameters"], found["training"]) == ("650", "1,257")
    assert (found["validation"], found["test examples"]) == ("180", "360")
    median = statistics.median([*BASE, *BETTER]) / 1e4
    error = 100 * math.sqrt(median * (1 - median) / 360)
    assert found["standard error of a test accuracy"] == f"{error:.2f} points"


def test_the_baseline_is_dp_sgd_under_its_own_name_if_it_is_there() -> None:
    keys = [("dp-adam", "dp-sgd"), ("dp-sgd", "neither"), ("dp-sgd", "dp-sgd")]
    assert baseline_of(keys) == ("dp-sgd", "dp-sgd")
    assert baseline_of(keys[:2]) == ("dp-sgd", "neither")
    assert baseline_of(keys[:1]) is None


def test_costs_are_ratios_of_device_time_on_the_same_machine(tmp_path: Path) -> None:
    runs = frame(
        tmp_path,
        {"dp-sgd": BASE, "dp-adam": BASE, "dp-pmlf": BASE},
        cpu_seconds={"dp-sgd": 2.0, "dp-adam": 3.0, "dp-pmlf": 6.0},
        training_seconds=60.0,
        cpu={"dp-sgd": "a", "dp-adam": "a", "dp-pmlf": "b"},
    )
    sgd, adam, pmlf = (runs[runs["method"] == name] for name in ("dp-sgd", "dp-adam", "dp-pmlf"))
    assert cost_ratio(adam, sgd) == 1.5  # not 1, the ratio of wall clocks
    assert math.isnan(cost_ratio(pmlf, sgd))  # another machine
    assert math.isnan(cost_ratio(adam, sgd.assign(cpu_seconds=0.0)))  # too short for its clock
    assert contended(sgd)
    on_gpu = runs.assign(gpu="H100")
    assert cost_ratio(on_gpu[runs["method"] == "dp-adam"], on_gpu[runs["method"] == "dp-sgd"]) == 1
    assert not contended(on_gpu)
    assert said(runs[runs["method"] != "dp-pmlf"])["time ÷ dp-sgd"] == "–"


def test_an_audit_note_names_what_was_found_and_the_command_for_the_rest(tmp_path: Path) -> None:
    audit = {
        "dp-sgd": "not refuted: attacks show ε 0.90 of 1.00",
        "dp-adam": "",
        "dp-pmlf": "refuted: attacks show ε 2.00 of 1.00",
    }
    words = audit_note(frame(tmp_path, dict.fromkeys(audit, BASE), audit=audit))
    assert words.startswith(
        "REFUTED: dp-pmlf. Not refuted: dp-sgd (attacks show ε 0.90 of 1.00). Not audited: dp-adam."
    )
    assert "snakemake --cores all reports/quickstart/audit.pdf" in words
    assert "95% confidence for all audited methods of the study together" in words


# ---- How clear a choice was


def tuned(scores: tuple[float, float], edges: list[str], **changes: Any) -> dict[str, Any]:
    best = [
        {"hyperparameters": json.dumps({"learning_rate": rate}), "score": score}
        for rate, score in zip((1.0, 3.0), scores, strict=True)
    ]
    made = {"metric": "validation_accuracy", "best": best, "edges": edges, "seeds": 2}
    return {
        "configurations": 4,
        "tuning_runs": 8,
        "choice": parse(FoundChoice, {**made, **changes}),
    }


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, ()),
        ({"configurations": 4, "tuning_runs": 8}, ("not made yet",)),
        (tuned((0.90, 0.86), []), ("clear",)),
        (tuned((0.90, 0.89), []), ("tied",)),
        (tuned((0.90, 0.86), ["learning_rate"]), ("at an edge",)),
        (tuned((0.90, 0.89), ["learning_rate"]), ("tied", "at an edge")),
        (tuned((0.2, 0.3), [], metric="validation_loss"), ("clear",)),
    ],
)
def test_a_choice_is_clear_if_validation_tells_it_from_the_next_and_the_grid_goes_on(
    tmp_path: Path, choice: dict[str, Any], words: tuple[str, ...]
) -> None:
    # One standard error of 0.9 on 180 examples is 0.022.
    assert clarity(frame(tmp_path, {"dp-sgd": BASE}, **choice)) == words


def test_the_verdict_names_doubtful_choices_of_the_methods_it_compares(tmp_path: Path) -> None:
    doubt, sure = tuned((0.90, 0.89), ["learning_rate"]), tuned((0.90, 0.80), [])
    both = {name: {"dp-sgd": doubt[name], "dp-adam": sure[name]} for name in doubt}
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, **both)
    assert said(runs)["hyper-parameters"] == "unclear: dp-sgd"
    all_unclear = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, **doubt)
    assert said(all_unclear)["hyper-parameters"] == "unclear"
    assert (
        said(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, **sure))["hyper-parameters"]
        == "clear"
    )
    assert said(frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}))["hyper-parameters"] == "given"


def test_a_choice_that_is_not_made_yet_leaves_the_clarity_of_a_setting_open(tmp_path: Path) -> None:
    sure = tuned((0.90, 0.80), [])
    pending = {"configurations": 4, "tuning_runs": 8, "choice": ""}
    both = {name: {"dp-sgd": pending[name], "dp-adam": sure[name]} for name in sure}
    runs = frame(tmp_path, {"dp-sgd": BASE, "dp-adam": BETTER}, **both)
    assert said(runs)["hyper-parameters"] == "not made yet"


def test_the_choice_of_a_method_that_is_not_compared_does_not_count(tmp_path: Path) -> None:
    levels = {"dp-adam": BETTER, "dp-adamw": BASE, "dp-sgdm": tuple(value - 900 for value in BASE)}
    doubt, sure = tuned((0.90, 0.89), []), tuned((0.90, 0.80), [])
    values = {
        name: {"dp-adam": sure[name], "dp-adamw": sure[name], "dp-sgdm": doubt[name]}
        for name in sure
    }
    assert said(frame(tmp_path, levels, **values))["hyper-parameters"] == "clear"
    values = {name: {**each, "dp-adamw": doubt[name]} for name, each in values.items()}
    assert said(frame(tmp_path, levels, **values))["hyper-parameters"] == "unclear: dp-adamw"


def test_a_choice_stands_beside_the_next_best_with_both_scores(tmp_path: Path) -> None:
    table = choices_data(frame(tmp_path, {"dp-sgd": BASE}, **tuned((0.9, 0.89), [])))
    (row,) = table.rows
    assert row[5:] == [
        *("learning_rate 1", "90.00", "learning_rate 3", "89.00", "4", "2", "180", "tied")
    ]
    assert not any("WARNING" in note for note in table.notes)
    edge = choices_data(frame(tmp_path, {"dp-sgd": BASE}, **tuned((0.9, 0.8), ["clip_norm"])))
    assert edge.notes[0].startswith("WARNING: 1 of 1 choice at an edge of the grid")
    assert edge.rows[0][-1] == "at an edge of clip_norm"
    assert choices_data(frame(tmp_path, {"dp-sgd": BASE})).rows == []


def test_many_choices_are_counted(tmp_path: Path) -> None:
    rows = [
        {**run_row(dataset=f"set-{number}"), **tuned((0.9, 0.89 - 0.1 * (number < 10)), [])}
        for number in range(40)
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    table = choices_data(runs)
    heads = ["method", "choices", "clear", "tied", "at an edge", "not made yet", "median lead"]
    assert table.heads == heads
    assert table.rows == [["dp-sgd", "40", "10", "30", "0", "0", "1.00"]]


def test_the_choice_of_each_of_repeated_searches_is_a_choice(tmp_path: Path) -> None:
    rows = [
        {**run_row(seed=2 * search + again), **tuned(scores, []), "search": search + 1}
        for search, scores in enumerate(((0.9, 0.8), (0.9, 0.89)))
        for again in range(2)
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    rows_shown = choices_data(runs).rows
    assert [(row[0], row[-1]) for row in rows_shown] == [
        ("ε = 1, search 1", "clear"),
        ("ε = 1, search 2", "tied"),
    ]
