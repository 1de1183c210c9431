"""Confirmed runs: every run is compared, collapses are counted, and tables say what tests found."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

from clipnoise.errors import UserError
from clipnoise.report.inference.confirmed import (
    Confirmed,
    gains_over,
    gather,
    told_apart,
    who_can_be_best,
)
from clipnoise.report.inference.gains import gain, simultaneous_intervals

NAMES = ("task", "epsilon")
METHODS = ("dp-sgd", "dp-adam", "dpzero")


def frame(seed: int = 0, searches: int = 8, examples: int = 60) -> pd.DataFrame:
    """Return runs of which dp-adam gets 90% right, DP-SGD 70% and dpzero half."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "label": label,
                "search": search,
                "seed": 100 * search + seed,
                "status": "completed",
                "right": rng.random(examples) < level,
            }
            for label, level in zip(METHODS, (0.7, 0.9, 0.5), strict=True)
            for search in range(1, searches + 1)
            for seed in (1, 2)
        ]
    )


def test_runs_are_arranged_by_method_search_and_seed() -> None:
    runs = frame()
    one = gather(runs.sample(frac=1, random_state=0).sort_values("label"), 0.5)
    assert one.right.shape == (3, 8, 2, 60)
    for label, search, seed, bits in runs[["label", "search", "seed", "right"]].itertuples(
        index=False
    ):
        place = one.methods.index(label), search - 1, seed % 100 - 1
        assert (one.right[place] == bits).all()
    assert one.by_search.mean() == pytest.approx(np.mean(np.stack(runs["right"])))


def test_a_diverged_run_counts_as_one_with_nothing_right_and_is_counted() -> None:
    runs = frame()
    runs.loc[0, "status"], runs.at[0, "right"] = "diverged", None
    whole, lost = gather(frame(), 0.3), gather(runs, 0.3)
    assert lost.accuracy[0, 0, 0] == 0
    assert lost.by_search[0, 0] == whole.accuracy[0, 0, 1] / 2
    table = who_can_be_best({("digits", 1.0): lost}, NAMES).set_index("method")
    assert table.loc["dp-sgd", ["runs", "diverged", "collapsed"]].tolist() == [16, 1, 1]


def test_a_run_no_better_than_a_constant_prediction_has_collapsed() -> None:
    one = gather(frame(), 0.5)
    table = who_can_be_best({("digits", 1.0): one}, NAMES).set_index("method")
    assert table.loc["dpzero", "diverged"] == 0
    assert table.loc["dpzero", "collapsed"] >= 14
    assert table.loc["dp-adam", "collapsed"] == 0


def test_the_best_method_is_found_and_the_others_are_excluded() -> None:
    settings = {("digits", e): gather(frame(int(e)), 0.5) for e in (1.0, 3.0)}
    table = who_can_be_best(settings, NAMES)
    assert table[NAMES[1]].tolist() == [1.0] * 3 + [3.0] * 3
    assert set(table.loc[table["can_be_best"], "method"]) == {"dp-adam"}
    p = table[["p_here", "p_population"]].max(axis=1)
    np.testing.assert_allclose(table["adjusted"], np.minimum(1, 2 * p))


def test_pairs_that_are_told_apart_are_named_with_the_better_one_first() -> None:
    table = told_apart({("digits", 1.0): gather(frame(), 0.5)}, NAMES)
    pairs = set(zip(table["better"], table["worse"], strict=True))
    assert pairs == {("dp-adam", "dp-sgd"), ("dp-adam", "dpzero"), ("dp-sgd", "dpzero")}
    assert (table["difference"] > 0).all()
    few = {("digits", 1.0): gather(frame(searches=4), 0.5)}
    assert told_apart(few, NAMES).empty  # four searches can tell nothing apart


def test_gains_have_an_interval_alone_and_a_wider_one_together() -> None:
    table = gains_over({("digits", 1.0): gather(frame(), 0.5)}, NAMES, "dp-sgd")
    assert table["method"].tolist() == ["dp-adam", "dpzero"]
    assert (table["all_low"] < table["low"]).all()
    assert (table["low"] < table["gain"]).all()
    assert (table["error"] >= table[["search_error", "test_error"]].max(axis=1)).all()
    assert table["gain"].iloc[0] == pytest.approx(0.2, abs=0.1)


def test_gains_are_those_of_the_analysis_and_hold_together_over_all_settings() -> None:
    settings = {("digits", e): gather(frame(int(e)), 0.5) for e in (1.0, 3.0)}
    table = gains_over(settings, NAMES, "dp-sgd")
    assert table["epsilon"].tolist() == [1.0, 1.0, 3.0, 3.0]
    of = settings["digits", 3.0].components
    row, one = table.iloc[3], gain(of, 2, 0)
    together = simultaneous_intervals(of, 0, settings=2)[2]
    assert row["method"] == "dpzero"
    assert row[["gain", "error"]].tolist() == [one.mean, one.error]
    assert row[["search_error", "test_error"]].tolist() == [one.search_error, one.test_error]
    assert row[["low", "high"]].tolist() == [one.interval.low, one.interval.high]
    assert row[["all_low", "all_high"]].tolist() == [together.low, together.high]


def test_a_setting_without_the_baseline_has_no_gains() -> None:
    assert gains_over({("users", 1.0): gather(frame(), 0.5)}, NAMES, "dp-fedavg").empty


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs.drop(index=3), "'dp-sgd' has 0 runs of search 2"),
        (lambda runs: pd.concat([runs, runs[:1]]), "'dp-sgd' has 2 runs of search 1"),
        (
            lambda runs: runs.assign(status=[*["completed"] * 47, "missing"]),
            "the run of 'dpzero' with search 8 and seed 802 is missing",
        ),
        (lambda runs: runs[runs["label"] == "dp-sgd"], "two methods or more"),
        (lambda runs: runs[runs["search"] == 1], "two searches or more"),
        (lambda runs: runs.assign(right=[np.ones(4 + i % 2) for i in range(len(runs))]), "[4, 5]"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(change, words: str) -> None:
    with pytest.raises(UserError) as caught:
        gather(change(frame()), 0.5)
    assert words in str(caught.value)


def test_two_searches_can_be_compared() -> None:
    assert gather(frame(searches=2), 0.5).right.shape == (3, 2, 2, 60)


@pytest.mark.parametrize(
    "table", [who_can_be_best, told_apart, partial(gains_over, baseline="dp-sgd")]
)
def test_a_place_has_as_many_parts_as_there_are_names(table) -> None:
    with pytest.raises(ValueError, match="zip"):
        table({("digits", 1.0): gather(frame(), 0.5)}, ("task",))


def test_the_results_of_a_setting_are_those_of_its_runs() -> None:
    right = np.zeros((2, 2, 1, 4), dtype=bool)
    right[0, 0, 0, :3] = True
    one = Confirmed(("a", "b"), right, np.zeros((2, 2, 1), dtype=bool), 0.25)
    assert one.accuracy.tolist() == [[[0.75], [0.0]], [[0.0], [0.0]]]
    assert one.by_search.tolist() == [[0.75, 0.0], [0.0, 0.0]]
