"""Tuning runs are ordinary runs, and a run that waits for their choice keeps its identity."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.fields import to_plain
from clipnoise.files import write_json
from clipnoise.privacy.accountants.poisson import epsilon
from clipnoise.privacy.accountants.selection import composed_epsilon, selected_epsilon
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.report.hyperparameters import candidates
from clipnoise.run.choice import Choice, Spent, Tried, read_choice, resolve, tuned_values
from clipnoise.run.results import privacy_statement, statement_of_run
from clipnoise.run.spec import from_mapping, read_spec, to_mapping, write_spec
from clipnoise.studies.collect import collect
from clipnoise.studies.plan import Plan
from clipnoise.studies.study import Study, load_study, memberships
from clipnoise.studies.tuning import Tune, choose, epsilon_with_tuning

GRID = {"learning_rate": [0.1, 1.0], "clip_norm": [1.0, 3.0]}
TUNE: dict[str, Any] = {"grid": GRID, "seeds": [11, 12]}
RANGES = {"learning_rate": [0.01, 100], "clip_norm": [0.1, 10]}
DRAWN: dict[str, Any] = {**TUNE, "trials": {"mean": 6}, "seeds": [11]}
TRIALS: dict[str, Any] = {"ranges": RANGES, "trials": 8, "seeds": [11]}
REPEATED: dict[str, Any] = {**TRIALS, "searches": 3, "seeds": [11, 12, 13]}


def load(folder: Path, tune: dict[str, Any] | None = None, **changes: Any) -> Study:
    panel = {
        "datasets": ["digits"],
        "models": ["logistic", "cnn-small"],
        "epsilons": [1, 8],
        "seeds": [1, 2, 3],
        "training": {"expected_batch_size": 100, "steps": 5},
        "methods": [{"id": "dp-sgd", "tune": tune or TUNE}],
        **changes,
    }
    report = [{"kind": "table", "panels": "one"}]
    path = folder / "studies" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        yaml.safe_dump(
            {"title": "Mine", "panels": {"one": panel}, "report": report}, sort_keys=False
        )
    )
    return load_study(path)


def test_each_setting_is_tuned_over_the_whole_grid_with_separate_seeds(tmp_path: Path) -> None:
    study = load(tmp_path)
    assert len(study.runs) == 2 * 2 * 3
    assert len(study.searches) == 2 * 2
    for search in study.searches.values():
        assert len(search.configurations) == 4
        assert {spec.seed for spec in search.runs} == {11, 12}
        assert all(spec.tuning is None for spec in search.runs)  # ordinary runs
        assert len({(spec.model.id, spec.budget_label) for spec in search.runs}) == 1


def trials(number: int) -> list[dict[str, Any]]:
    tune = Tune(
        seeds=(11,),
        ranges={"learning_rate": (0.01, 100), "clip_norm": (0.1, 10)},
        grid={"gamma": (1, 2, 3)},
        trials=number,
    )
    return tune.configurations()


def test_trials_start_in_the_middle_of_every_range() -> None:
    assert trials(1) == [{"learning_rate": 1.0, "clip_norm": pytest.approx(0.464), "gamma": 1}]


def test_more_trials_begin_with_the_same_ones() -> None:
    assert trials(16)[:5] == trials(5)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_trials_fall_evenly_into_the_halves_and_quarters_of_a_range(power: int) -> None:
    """Points 0 to 2^p − 1 of the sequence have one in each of 2^p parts; point 0 is not tried."""
    rates = [one["learning_rate"] for one in trials(2**power - 1)]
    parts = {round(2**power * (math.log10(rate) + 2) / 4) for rate in rates}
    assert parts == set(range(1, 2**power))


def test_every_candidate_of_a_grid_is_tried_about_equally_often() -> None:
    counts = Counter(one["gamma"] for one in trials(124)).values()
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_specs_of_older_versions_are_read_unless_they_multiply_what_was_chosen(
    tmp_path: Path,
) -> None:
    spec = load(tmp_path, TRIALS).runs[0].spec
    old: dict[str, Any] = to_mapping(spec)
    old["tuning"]["times"] = {}
    assert from_mapping(old) == spec
    old["tuning"]["times"] = {"learning_rate": 0.5}
    with pytest.raises(UserError, match=r"tuning\.times: unknown key"):
        from_mapping(old)


def test_choices_of_older_versions_are_read(tmp_path: Path) -> None:
    made = choose([summary(0.1, 0.5)], ["learning_rate"], "validation_accuracy")
    old = to_plain(made)
    old["tried"][0]["test"] = 0.9
    write_json(tmp_path / "choice.json", old)
    assert read_choice(tmp_path / "choice.json") == made


def test_no_choice_depends_on_the_test_split() -> None:
    runs = [summary(0.1, 0.5), summary(1.0, 0.7)]
    for run, test in zip(runs, (0.9, 0.1), strict=True):
        run["final"]["test_accuracy"] = test
    made = choose(runs, ["learning_rate"], "validation_accuracy")
    assert made.choice == {"learning_rate": 1.0}


def test_axes_that_share_a_choice_are_tuned_together(tmp_path: Path) -> None:
    study = load(tmp_path, {**TUNE, "per": ["dataset", "model"]})
    assert len(study.searches) == 2
    for search in study.searches.values():
        for configuration in search.configurations:
            assert {spec.budget_label for spec in configuration} == {"eps=1", "eps=8"}
    assert len({run.spec.tuning.key for run in study.runs if run.spec.tuning}) == 2


def test_an_override_may_tune_over_another_grid(tmp_path: Path) -> None:
    other = {**TUNE, "grid": {"learning_rate": [5.0]}}
    method = {
        "id": "dp-sgd",
        "clip_norm": 1,
        "tune": {**TUNE, "grid": {"learning_rate": [1.0, 2.0]}},
        "overrides": [{"epsilon": 8, "tune": other}],
    }
    sizes = {
        search.runs[0].budget_label: len(search.configurations)
        for search in load(tmp_path, methods=[method]).searches.values()
    }
    assert sizes == {"eps=1": 2, "eps=8": 1}


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({**TUNE, "seeds": [3, 4]}, "tune.seeds: 3 are also reported"),
        ({**TUNE, "grid": {"learning_rat": [1]}}, "Did you mean 'learning_rate'"),
        ({**TUNE, "grid": {}}, "give at least one hyper-parameter"),
        ({**TUNE, "metric": "test_accuracy"}, "validation_accuracy"),
        ({**TUNE, "charges": "nothing"}, "Did you mean 'charge'"),
        ({"ranges": {"learning_rate": [1, 3]}, "seeds": [11]}, "ranges: give `trials`"),
        ({**TRIALS, "ranges": {"learning_rate": [3, 1]}}, "ranges.learning_rate: give a smallest"),
        ({**TRIALS, "ranges": {"learning_rate": [[1, 3], [3, 1]]}}, "rate: give a smallest"),
        ({**TRIALS, "ranges": {"learning_rate": []}}, "ranges.learning_rate"),
        ({**TRIALS, "grid": {f"x{i}": [1] for i in range(5)}}, "trials: at most 6 hyper-parame"),
        ({**TUNE, "trials": {"mean": 6}}, "seeds: give one"),
        ({**DRAWN, "trials": {"mean": 0.5}}, "mean"),
        ({**DRAWN, "per": ["dataset"]}, "per: must be every axis"),
        ({**TUNE, "charge": "included"}, "charge: included needs the law of a drawn number"),
        ({**REPEATED, "seeds": [11, 12]}, "seeds: give a multiple of 3, the number of searches; 2"),
        ({**REPEATED, "searches": 2, "seeds": [11, 12]}, "panels.one.seeds: give a multiple of 2"),
        ({**TUNE, "at": 3}, r"tune\.at: it is gone; write per: \[dataset, model\]"),
        ({**DRAWN, "grid": {"steps": [5, 9]}}, "steps: not where the number of trials is drawn"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_in_what_is_tuned_names_the_place(
    tmp_path: Path, tune: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path, tune).runs  # noqa: B018
    assert "mine.yaml" in str(error.value)


SIX = [1, 2, 3, 4, 5, 6]


def test_repeated_searches_share_no_seed_no_point_and_no_reported_run(tmp_path: Path) -> None:
    study = load(tmp_path, REPEATED, seeds=SIX, models=["logistic"], epsilons=[3])
    assert len(study.searches) == 3
    tried, seeds = set(), set()
    for search in study.searches.values():
        assert len(search.configurations) == 8
        seeds |= {frozenset(spec.seed for spec in search.runs)}
        tried |= {
            tuple(tuned_values(to_mapping(spec), search.parameters).values())
            for spec in search.runs
        }
    assert seeds == {frozenset({11}), frozenset({12}), frozenset({13})}
    assert len(tried) == 3 * 8
    assert [(run.search, run.spec.seed) for run in study.runs] == [
        (1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6)
    ]  # fmt: skip
    keys = [run.spec.tuning.key for run in study.runs if run.spec.tuning]
    assert keys == [key for key in study.searches for _ in range(2)]
    assert len({run.spec.hash for run in study.runs}) == 6


def test_a_search_is_the_same_whatever_comes_after_it(tmp_path: Path) -> None:
    one = {**REPEATED, "searches": 1, "seeds": [11]}
    alone = load(tmp_path, one, seeds=[1, 2], models=["logistic"])
    assert {run.search for run in alone.runs} == {None}  # its points are moved, but none repeats it
    first = {run.spec.hash for run in alone.runs}
    of_three = load(tmp_path, REPEATED, seeds=SIX, models=["logistic"])
    assert {run.spec.hash for run in of_three.runs if run.search == 1} == first


def test_methods_of_a_panel_are_searched_at_the_same_places(tmp_path: Path) -> None:
    methods = [{"id": name, "tune": REPEATED} for name in ("dp-sgd", "disk")]
    study = load(tmp_path, seeds=SIX, models=["logistic"], epsilons=[3], methods=methods)
    rates: dict[str, list[float]] = {"dp-sgd": [], "disk": []}
    for spec in study.tuning_runs:
        rates[spec.method.id].append(to_mapping(spec)["method"]["learning_rate"])
    assert rates["dp-sgd"] == rates["disk"]


@pytest.mark.parametrize("search", [0, 1, 2])
def test_shifted_points_stay_in_their_ranges_and_fall_evenly(search: int) -> None:
    ranges = {"rate": (0.01, 100.0)}
    tune = Tune(grid={"gamma": (1, 2)}, ranges=ranges, trials=64, seeds=(1, 2, 3), searches=3)
    tried = tune.configurations(search=search)
    places = sorted((math.log10(one["rate"]) + 2) / 4 for one in tried)
    assert 0 <= places[0] <= places[-1] <= 1
    assert max(abs(place - (n + 0.5) / 64) for n, place in enumerate(places)) < 2.5 / 64
    assert sum(one["gamma"] == 1 for one in tried) == pytest.approx(32, abs=3)


def test_a_point_is_anywhere_in_its_range_over_searches() -> None:
    """The mean of a place that is uniform on [0, 1) over 200 searches has a deviation of 0.02."""
    ranges = {"rate": (1.0, 10.0)}
    tune = Tune(ranges=ranges, trials=1, seeds=tuple(range(200)), searches=200)
    places = [math.log10(tune.configurations(search=n)[0]["rate"]) for n in range(200)]
    assert sum(places) / 200 == pytest.approx(0.5, abs=0.08)
    assert sum(place < 0.1 for place in places) == pytest.approx(20, abs=14)


LINEAR = {"kind": "linear", "peak": [1.0, 10.0], "final": 0}


@pytest.mark.parametrize(
    ("rate", "end"),
    [
        (0.06, "lowest"),
        (0.07, None),
        (15.8, None),
        (15.9, "highest"),
        ({**LINEAR, "peak": 1.5}, "lowest"),
        ({**LINEAR, "peak": 2}, None),
        ({**LINEAR, "peak": 7}, "highest"),
        ([1.0, 100.0], None),
        (None, None),
    ],
)
def test_an_end_of_a_range_is_the_outer_fifth_of_its_logarithms(rate: object, end: str) -> None:
    tune = Tune(ranges={"rate": ((0.01, 100.0), LINEAR)}, trials=1, seeds=(1,))
    assert tune.end_of("rate", rate) == end
    assert tune.end_of("clip_norm", rate) is None


def test_trials_divide_themselves_between_the_ranges_of_a_list() -> None:
    ranges: Any = {"rate": ((0.01, 100.0), LINEAR)}
    tune = Tune(ranges=ranges, trials=127, seeds=(1,))
    rates = [one["rate"] for one in tune.configurations()]
    numbers = [one for one in rates if isinstance(one, float)]
    peaks = [one["peak"] for one in rates if isinstance(one, dict)]
    assert len(numbers) + len(peaks) == 127
    assert abs(len(numbers) - len(peaks)) == 1
    for values, low, high in ((numbers, 0.01, 100), (peaks, 1, 10)):
        places = sorted(math.log(value / low) / math.log(high / low) for value in values)
        assert max(abs(at - (n + 0.5) / len(places)) for n, at in enumerate(places)) < 1 / 60
    assert all(one == {**LINEAR, "peak": one["peak"]} for one in rates if isinstance(one, dict))


def test_a_study_searches_over_a_constant_rate_and_one_that_falls(tmp_path: Path) -> None:
    tune = {**TRIALS, "ranges": {**RANGES, "learning_rate": [[0.01, 100], LINEAR]}}
    study = load(tmp_path, tune, models=["logistic"], epsilons=[3])
    rates = [to_mapping(spec)["method"]["learning_rate"] for spec in study.tuning_runs]
    assert {type(rate) for rate in rates} == {float, dict}
    (said,) = set(candidates(study).values())
    assert "learning_rate [0.01 to 100 or " in said


def test_a_drawn_number_of_trials_is_drawn_again_for_each_search(tmp_path: Path) -> None:
    drawn = {**DRAWN, "searches": 3, "seeds": [11, 12, 13]}
    study = load(tmp_path, drawn, seeds=SIX, models=["logistic"], epsilons=[3])
    alone = load(tmp_path, DRAWN, seeds=[1], models=["logistic"], epsilons=[3])
    assert len(study.searches) == 3
    assert next(iter(alone.searches)) == next(iter(study.searches))


def test_a_smaller_scale_keeps_the_first_searches(tmp_path: Path) -> None:
    scale = tmp_path / "scales" / "tiny.yaml"
    scale.parent.mkdir()
    scale.write_text("watermark: tiny\nseeds: 3\n")
    whole = load(tmp_path, REPEATED, seeds=SIX, models=["logistic"], epsilons=[3])
    small = load_study(whole.path, scale)
    assert [(run.search, run.spec.seed) for run in small.runs] == [(1, 1), (1, 2), (2, 3)]
    assert len(small.searches) == 2


def test_trials_whose_number_is_drawn_are_runs_with_a_seed_each(tmp_path: Path) -> None:
    study = load(tmp_path, DRAWN)
    again = load(tmp_path, DRAWN)
    assert list(study.searches) == list(again.searches)
    numbers = {len(search.configurations) for search in study.searches.values()}
    assert len(numbers) == 1  # one seed, one number
    for search in study.searches.values():
        assert len({spec.seed for spec in search.runs}) == len(search.runs) == numbers.copy().pop()
        assert search.law == DrawnTrials(mean=6)
        assert search.each
    tuning = study.runs[0].spec.tuning
    assert tuning is not None
    assert tuning.law == DrawnTrials(mean=6)


def test_searches_of_another_law_are_others_though_they_try_the_same(tmp_path: Path) -> None:
    keys, tried = set(), set()
    for mean in (6, 6.001):
        study = load(tmp_path, {**DRAWN, "trials": {"mean": mean}}, epsilons=[1])
        keys |= set(study.searches)
        tried |= {tuple(spec.hash for spec in one.runs) for one in study.searches.values()}
    assert len(keys) == 2 * len(tried) == 4


def test_the_number_of_trials_follows_its_law_over_seeds() -> None:
    law = DrawnTrials(mean=6)
    counts = [
        len(Tune(grid={"gamma": (1, 2, 3)}, trials=law, seeds=(seed,)).configurations())
        for seed in range(300)
    ]
    assert min(counts) == 1
    assert sum(counts) / len(counts) == pytest.approx(6, abs=1)  # standard error 0.3


def test_trials_take_candidates_with_replacement_and_ranges_evenly() -> None:
    law = DrawnTrials(law="poisson", mean=400)
    tune = Tune(grid={"gamma": (1, 2)}, ranges={"rate": (0.01, 1)}, trials=law, seeds=(3,))
    tried = tune.configurations()
    assert len(tried) == pytest.approx(400, abs=100)
    assert sum(one["gamma"] == 1 for one in tried) / len(tried) == pytest.approx(0.5, abs=0.1)
    assert sum(one["rate"] < 0.1 for one in tried) / len(tried) == pytest.approx(0.5, abs=0.1)
    assert len({tune.seeds_of(number) for number in range(len(tried))}) == len(tried)


def test_equal_trials_are_compared_by_themselves() -> None:
    runs = [summary(0.1, 0.2), summary(0.1, 0.9), summary(1.0, 0.7)]
    assert choose(runs, ["learning_rate"], "validation_accuracy").choice == {"learning_rate": 1.0}
    found = choose(runs, ["learning_rate"], "validation_accuracy", each=True)
    assert found.choice == {"learning_rate": 0.1}
    assert len(found.tried) == 3


def test_a_scale_that_tries_fewer_than_were_drawn_leaves_no_epsilon(tmp_path: Path) -> None:
    scale = tmp_path / "scales" / "tiny.yaml"
    scale.parent.mkdir()
    scale.write_text("watermark: tiny\nconfigurations: 1\n")
    drawn = load(tmp_path, {**DRAWN, "trials": {"law": "poisson", "mean": 30}})
    search = next(iter(load_study(drawn.path, scale).searches.values()))
    assert len(search.runs) == 1
    assert search.law is None


def test_a_trial_that_diverged_leaves_no_epsilon(tmp_path: Path) -> None:
    planned = load(tmp_path, DRAWN).runs[0].spec
    made = choice(learning_rate=1.0, clip_norm=1.0)
    lost = replace(made, tried=(*made.tried, replace(made.tried[0], mean=None)))
    assert resolve(planned, made).search_law == DrawnTrials(mean=6)
    assert resolve(planned, lost).search_law is None
    assert planned.search_law is None  # not chosen yet
    assert resolve(planned, lost).hash == planned.hash


@pytest.mark.long
def test_the_statement_of_a_run_has_epsilon_with_and_without_its_search(tmp_path: Path) -> None:
    study = load(tmp_path, DRAWN, models=["logistic"], epsilons=[1], seeds=[1])
    planned = study.runs[0].spec
    assert planned.budget is not None
    calibration = calibrate(planned.budget)
    without = privacy_statement(planned, calibration)
    assert "epsilon_with_tuning" not in to_plain(without)
    run = resolve(planned, choice(learning_rate=1.0, clip_norm=1.0))
    found = to_plain(privacy_statement(run, calibration))
    releases = (found["noise_multiplier"], found["sampling_rate"], found["steps"])
    expected = selected_epsilon(DrawnTrials(mean=6), releases, then=releases, delta=found["delta"])
    assert found["epsilon"] == without.epsilon < found["epsilon_with_tuning"] == expected
    assert "nor the seed of the search" in found["covers"]
    assert statement_of_run(run, calibration) == without  # of a saved model
    tune = study.runs[0].tune
    assert tune is not None
    assert epsilon_with_tuning(tune.charged, found, choice()) == expected
    assert math.isnan(epsilon_with_tuning(tune.charged, to_plain(without), choice()))


@pytest.mark.long
def test_an_included_choice_is_covered_by_the_target_of_every_run(tmp_path: Path) -> None:
    tune = {**DRAWN, "charge": "included"}
    study = load(tmp_path, tune, models=["logistic"], epsilons=[1], seeds=[1])
    planned = study.runs[0].spec
    runs = [spec for search in study.searches.values() for spec in search.runs]
    budgets = {spec.budget.key for spec in (planned, *runs) if spec.budget}
    assert len(budgets) == 1  # every trial has the noise of the run
    assert planned.budget is not None
    calibration = calibrate(planned.budget)
    calibration.verify()
    run = resolve(planned, choice(learning_rate=1.0, clip_norm=1.0))
    stated = privacy_statement(run, calibration)
    assert stated.epsilon is not None
    assert stated.epsilon_with_tuning is not None
    assert stated.epsilon < 0.98 < stated.epsilon_with_tuning <= stated.epsilon_target == 1
    assert study.runs[0].tune is not None
    assert study.runs[0].tune.charged == "drawn"


def test_a_choice_that_is_not_included_leaves_no_trace_in_runs_and_budgets(tmp_path: Path) -> None:
    (first, *_) = load(tmp_path, DRAWN).runs
    assert "trials" not in to_mapping(first.spec)["privacy"]
    assert first.spec.budget is not None
    assert "trials" not in first.spec.budget.options()


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"noise_multiplier": 2.0}, "trials: only with epsilon"),
        ({"sampler": "cyclic"}, "trials: what a choice costs is known for the sampler 'poisson'"),
    ],
)
def test_a_choice_is_included_only_where_its_cost_is_known(
    tmp_path: Path, privacy: dict[str, Any], said: str
) -> None:
    tune = {**DRAWN, "charge": "included"}
    epsilons = None if "noise_multiplier" in privacy else [1]
    with pytest.raises(UserError, match=said) as error:
        load(tmp_path, tune, privacy=privacy, epsilons=epsilons).runs  # noqa: B018
    assert "mine.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("tune", "declared"),
    [
        (DRAWN, "negative-binomial of shape 1, 6 expected"),
        ({**DRAWN, "charge": "included"}, "negative-binomial of shape 1, 6 expected"),
        (TUNE, "a fixed number, 4"),
    ],
)
def test_noise_covers_no_other_search_than_the_one_that_is_made(
    tmp_path: Path, tune: dict[str, Any], declared: str
) -> None:
    privacy = {"trials": {"law": "poisson", "mean": 2}}
    with pytest.raises(UserError) as error:
        load(tmp_path, tune, privacy=privacy).runs  # noqa: B018
    for said in (
        "mine.yaml: panels.one.privacy.trials: poisson, 2 expected, but",
        f"panels.one.methods.0.tune.trials is {declared}",
        "Allowed: the law of `tune`, or none",
    ):
        assert said in str(error.value)


def test_a_law_that_is_given_twice_is_included_as_if_given_once(tmp_path: Path) -> None:
    included = load(tmp_path, {**DRAWN, "charge": "included"}).runs[0].spec
    given = load(tmp_path, DRAWN, privacy={"trials": DRAWN["trials"]}).runs[0].spec
    assert given == included
    elsewhere = {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1}
    untuned = load(tmp_path, privacy={"trials": {"mean": 2}}, methods=[elsewhere]).runs[0].spec
    assert untuned.privacy is not None
    assert untuned.privacy.trials == DrawnTrials(mean=2)


def choice(**values: Any) -> Choice:
    tried = Tried(values=values, mean=0.5, n=1, planned=1)
    return Choice(metric="validation_accuracy", choice=values, tried=(tried,))


def test_a_run_has_the_same_identity_before_and_after_the_choice(tmp_path: Path) -> None:
    planned = load(tmp_path).runs[0].spec
    chosen = resolve(planned, choice(learning_rate=0.25, clip_norm=2.0))
    assert to_mapping(chosen)["method"] == {
        "id": "dp-sgd",
        "learning_rate": 0.25,
        "clip_rule": {"kind": "hard", "gamma": None, "per": "example"},
        "clip_norm": 2.0,
    }
    assert chosen.hash == planned.hash
    (tmp_path / "spec.yaml").write_text(write_spec(chosen))
    assert read_spec(tmp_path / "spec.yaml").hash == planned.hash
    assert read_spec(tmp_path / "spec.yaml") == chosen


def test_another_search_is_another_run(tmp_path: Path) -> None:
    first = {run.spec.hash for run in load(tmp_path).runs}
    for other in (
        {**TUNE, "seeds": [11, 13]},
        {**TUNE, "grid": {**GRID, "learning_rate": [0.1, 2.0]}},
        {**TUNE, "metric": "validation_loss"},
    ):
        assert not first & {run.spec.hash for run in load(tmp_path, other).runs}
    charged = load(tmp_path, {**TUNE, "charge": "composition"})
    assert {run.spec.hash for run in charged.runs} == first


def test_a_choice_about_something_else_is_refused(tmp_path: Path) -> None:
    planned = load(tmp_path).runs[0].spec
    with pytest.raises(UserError, match="leaves learning_rate, clip_norm open"):
        resolve(planned, choice(learning_rate=1.0))


def test_a_run_that_waits_is_not_trained_without_its_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(to_mapping(load(tmp_path).runs[0].spec))
    assert main(["train", "--spec", text, "--results", str(tmp_path)]) == 2
    assert "learning_rate, clip_norm of this run are tuned" in capsys.readouterr().err


def test_the_plan_knows_the_runs_of_a_search_and_what_waits_for_it(tmp_path: Path) -> None:
    study = load(tmp_path)
    plan = Plan.from_values({"studies": [str(study.path)]}, tmp_path / "studies")
    (key, search) = next(iter(study.searches.items()))
    assert plan.run(search.runs[0].hash) == search.runs[0]
    summaries = plan.done_files(search.runs)
    assert len(summaries) == 8
    words = plan.search_options(key).split()
    below, first = words[words.index("--below") + 1], words[words.index("--runs") + 1]
    assert f"{below}/{first}/summary.json" == summaries[0]
    waiting = next(run.spec for run in study.runs if run.spec.tuning and run.spec.tuning.key == key)
    assert plan.inputs(waiting.hash)["choice"] == [f"results/tuning/{key}.json"]
    assert plan.inputs(search.runs[0].hash)["choice"] == []
    assert len(memberships([study])) == len(study.runs) + 4 * 8


LENGTHS = {"expected_batch_size": [50, 100], "epochs": [0.1, 0.2], "learning_rate": [1.0]}
METHOD = {"id": "dp-sgd", "clip_norm": 1.0}


def test_batches_and_epochs_are_tuned_with_the_noise_that_each_needs(tmp_path: Path) -> None:
    study = load(
        tmp_path, {**TUNE, "grid": LENGTHS}, methods=[{**METHOD, "tune": {**TUNE, "grid": LENGTHS}}]
    )
    search = next(iter(study.searches.values()))
    assert [
        (specs[0].training.expected_batch_size, specs[0].training.epochs, specs[0].training.steps)
        for specs in search.configurations
    ] == [(50, 0.1, None), (50, 0.2, None), (100, 0.1, None), (100, 0.2, None)]
    waiting = next(run.spec for run in study.runs if run.spec.tuning)
    plan = Plan.from_values({"studies": [str(study.path)]}, tmp_path / "studies")
    assert len({spec.budget for spec in search.runs}) == 4
    files = [Path(name).stem for name in plan.inputs(waiting.hash)["calibration"]]
    assert sorted(files) == sorted({spec.budget.key for spec in search.runs if spec.budget})
    for specs in search.configurations:
        chosen = resolve(waiting, choice(**tuned_values(to_mapping(specs[0]), search.parameters)))
        assert chosen.hash == waiting.hash
        assert chosen.budget == specs[0].budget
        assert chosen.folder == waiting.folder
        assert from_mapping(to_mapping(chosen)) == chosen


def test_a_scale_that_limits_batches_and_steps_limits_what_is_chosen(tmp_path: Path) -> None:
    scale = tmp_path / "scales" / "tiny.yaml"
    scale.parent.mkdir()
    scale.write_text("watermark: tiny\ntraining: {expected_batch_size: 60, steps: 3}\n")
    method = {**METHOD, "tune": {**TUNE, "grid": LENGTHS}}
    search = next(iter(load_study(load(tmp_path, methods=[method]).path, scale).searches.values()))
    found = [
        tuned_values(to_mapping(specs[0]), search.parameters) for specs in search.configurations
    ]
    assert found == [
        {"expected_batch_size": 50, "epochs": 0.1, "learning_rate": 1.0, "steps": None},
        {"expected_batch_size": 50, "epochs": None, "learning_rate": 1.0, "steps": 3},
        {"expected_batch_size": 60, "epochs": 0.1, "learning_rate": 1.0, "steps": None},
        {"expected_batch_size": 60, "epochs": None, "learning_rate": 1.0, "steps": 3},
    ]


@pytest.mark.long
def test_a_run_is_trained_with_the_batches_that_were_chosen_at_the_epsilon_they_cost(
    tmp_path: Path,
) -> None:
    method = {**METHOD, "tune": {**TUNE, "grid": LENGTHS, "seeds": [11]}}
    study = load(tmp_path, methods=[method], models=["logistic"], epsilons=[1], seeds=[1])
    plan = Plan.from_values({"studies": [str(study.path)]}, tmp_path / "studies")
    (run,) = study.runs
    (search,) = study.searches.values()
    cache, results = tmp_path / "cache", tmp_path / "results"
    run.spec.dataset.prepare(cache)
    folders = {"--results": str(results), "--cache": str(cache)}
    common = [word for option in folders.items() for word in option]
    files = {spec.hash: tmp_path / f"{spec.budget.key}.json" for spec in search.runs if spec.budget}
    for spec in search.runs:
        assert spec.budget is not None
        calibrate(spec.budget).write(files[spec.hash])
        text = json.dumps(to_mapping(spec))
        assert main(["train", "--spec", text, "--calibration", str(files[spec.hash]), *common]) == 0
    chosen = results / "tuning" / f"{search.key}.json"
    words = plan.search_options(search.key).replace("results/runs", f"{results}/runs")
    assert main(["select", *words.split(), "--out", str(chosen)]) == 0
    text, every = json.dumps(to_mapping(run.spec)), [str(path) for path in files.values()]
    train = ["train", "--spec", text, "--choice", str(chosen), "--calibration", *every, *common]
    assert main(train) == 0
    (row,) = collect(study, results)[0].to_pylist()
    values = read_choice(chosen).choice
    assert row["status"] == "completed"
    assert json.loads(row["tuned"]) == values
    assert float(row["sampling_rate"]) == pytest.approx(
        values["expected_batch_size"] / run.spec.unit.count
    )
    assert 0.99 < float(row["epsilon_achieved"]) <= 1.0
    other = next(
        spec for spec in search.runs if spec.budget != resolve(run.spec, read_choice(chosen)).budget
    )
    wrong = [*train[: -len(every) - len(common)], str(files[other.hash]), *common]
    assert main(wrong) == 2


def summary(rate: float, accuracy: float, *, status: str = "completed") -> dict[str, Any]:
    return {
        "status": status,
        "spec": {"method": {"id": "dp-sgd", "learning_rate": rate}},
        "final": {"validation_accuracy": accuracy, "validation_loss": -accuracy},
        "privacy": PRIVACY,
    }


PRIVACY = {
    "claim": "guarantee",
    "epsilon": 1.0,
    "noise_multiplier": 2.0,
    "sampling_rate": 0.01,
    "steps": 100,
    "delta": 1e-5,
    "sampler": "poisson",
    "adjacency": "add-remove",
    "noise": {"kind": "independent"},
}


def test_a_damaged_run_of_a_search_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "seed=1" / "0123456789ab" / "summary.json"
    summary.parent.mkdir(parents=True)
    summary.write_text("{")
    words = ["--metric", "validation_loss", "--parameters", "learning_rate"]
    words += ["--below", str(tmp_path), "--runs", "seed=1/0123456789ab"]
    assert main(["select", *words, "--out", str(tmp_path / "choice.json")]) == 2
    said = capsys.readouterr().err
    assert f"{summary}: damaged result file" in said
    assert "It is set aside." in said
    assert not summary.exists()


@pytest.mark.parametrize(
    ("metric", "best"), [("validation_accuracy", 1.0), ("validation_loss", 1.0)]
)
def test_the_best_mean_on_the_validation_split_is_chosen(metric: Any, best: float) -> None:
    runs = [summary(0.1, 0.5), summary(0.1, 0.7), summary(1.0, 0.65), summary(1.0, 0.75)]
    found = choose(runs, ["learning_rate"], metric)
    assert found.choice == {"learning_rate": best}
    assert [one.n for one in found.tried] == [2, 2]
    assert found.tried[0].mean == pytest.approx(0.6 if metric.endswith("accuracy") else -0.6)
    assert found.remark == ""


def test_a_choice_knows_the_next_best_and_whether_it_is_at_an_edge_of_the_grid() -> None:
    def made(*accuracies: float) -> Choice:
        runs = [
            summary(rate, found) for rate, found in zip((0.1, 1.0, 3.0), accuracies, strict=False)
        ]
        return choose(runs, ["learning_rate"], "validation_accuracy")

    inside = made(0.6, 0.8, 0.7)
    assert [one.values["learning_rate"] for one in inside.ranked] == [1.0, 3.0, 0.1]
    assert inside.edges == []
    assert made(0.6, 0.7, 0.8).edges == ["learning_rate"]
    assert made(0.9, 0.7, 0.8).edges == ["learning_rate"]
    assert made(0.9).edges == []  # nothing else was tried
    listed = Choice(
        metric="validation_loss",
        choice={"betas": [0.9, 0.99]},
        tried=tuple(
            Tried(values={"betas": [0.9, beta]}, mean=loss, n=1, planned=1)
            for beta, loss in ((0.99, 0.1), (0.999, 0.2), (0.9, None))
        ),
    )
    assert listed.edges == []  # lists have no order
    assert [one.mean for one in listed.ranked] == [0.1, 0.2]


def test_a_diverged_configuration_cannot_be_chosen_and_is_reported() -> None:
    runs = [summary(0.1, 0.5), summary(1.0, 0.9), summary(1.0, 0.0, status="diverged")]
    found = choose(runs, ["learning_rate"], "validation_accuracy")
    assert found.choice == {"learning_rate": 0.1}
    assert found.tried[1].mean is None
    assert (found.tried[1].n, found.tried[1].planned) == (1, 2)
    assert "diverged" in found.remark
    runs = [summary(rate, 0.0, status="diverged") for rate in (0.1, 1.0)]
    lost = choose(runs, ["learning_rate"], "validation_accuracy")
    assert lost.choice == {"learning_rate": 0.1}
    assert "Every configuration" in lost.remark


def test_of_one_configuration_that_diverged_nothing_is_left_to_choose() -> None:
    lost = choose([summary(0.1, 0.9, status="diverged")], ["learning_rate"], "validation_accuracy")
    assert lost.choice == {"learning_rate": 0.1}
    assert lost.tried[0].mean is None
    assert "Every configuration" in lost.remark


def test_a_metric_that_the_runs_do_not_have_is_an_error() -> None:
    with pytest.raises(UserError, match="the runs have no validation_accuracy"):
        choose([summary(0.1, math.nan)], ["learning_rate"], "validation_accuracy")


def test_a_choice_survives_its_file(tmp_path: Path) -> None:
    found = choose([summary(0.1, 0.5), summary(1.0, 0.9)], ["learning_rate"], "validation_accuracy")
    write_json(tmp_path / "choice.json", to_plain(found))
    assert read_choice(tmp_path / "choice.json") == found
    assert found.spent[0].runs == 2
    with pytest.raises(UserError, match="no such file"):
        read_choice(tmp_path / "other.json")


def test_composing_equal_runs_is_one_longer_run() -> None:
    mechanism = {"noise_multiplier": 2.0, "sampling_rate": 0.01, "delta": 1e-5}
    longer = epsilon("rdp", steps=500, **mechanism)
    assert composed_epsilon([(2.0, 0.01, 100)] * 5, delta=1e-5) == pytest.approx(longer, rel=1e-6)
    assert composed_epsilon([], delta=1e-5) == 0


def test_charging_a_search_follows_its_runs() -> None:
    spent = Spent(
        noise_multiplier=2.0,
        sampling_rate=0.01,
        steps=100,
        runs=4,
        claim="guarantee",
        composable=True,
    )
    tried = tuple(
        Tried(values={"learning_rate": rate}, mean=0.5, n=2, planned=2) for rate in (0.1, 1.0)
    )
    made = Choice(
        metric="validation_accuracy", choice={"learning_rate": 1.0}, tried=tried, spent=(spent,)
    )
    mechanism = {"noise_multiplier": 2.0, "sampling_rate": 0.01, "delta": 1e-5, "steps": 100}
    composed = epsilon("rdp", **{**mechanism, "steps": 500})
    assert epsilon_with_tuning("composition", PRIVACY, made) == pytest.approx(composed, rel=1e-6)
    law = DrawnTrials(law="poisson", mean=2)
    selected = selected_epsilon(law, (2.0, 0.01, 100), delta=1e-5)
    assert epsilon_with_tuning("selection", PRIVACY, made) == selected
    assert selected > epsilon("pld", **mechanism)
    assert math.isnan(epsilon_with_tuning("nothing", PRIVACY, made))
    banded = {**PRIVACY, "noise": {"kind": "banded"}}
    assert math.isnan(epsilon_with_tuning("composition", banded, made))
    nodes = {**PRIVACY, "adjacency": "add-remove-node"}
    assert math.isnan(epsilon_with_tuning("composition", nodes, made))
    first, second = tried
    lost = replace(made, tried=(first, replace(second, mean=None, n=1)))  # a run of it diverged
    assert math.isnan(epsilon_with_tuning("composition", PRIVACY, lost))


def test_a_spec_without_tuning_has_an_empty_section() -> None:
    values = {
        "dataset": "digits",
        "model": "logistic",
        "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        "privacy": {"epsilon": 1},
        "training": {"expected_batch_size": 100, "epochs": 2},
        "seed": 1,
    }
    assert to_mapping(from_mapping(values))["tuning"] is None


def test_a_report_names_the_ends_of_a_range_instead_of_every_trial(tmp_path: Path) -> None:
    study = load(tmp_path, {**TRIALS, "grid": {}}, epsilons=[1], models=["logistic"])
    assert set(candidates(study).values()) == {"learning_rate [0.01 to 100], clip_norm [0.1 to 10]"}
