"""Schedules in runs, studies and searches: what they change, what ε covers, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from budgets import budget
from torch import Tensor

from clipnoise.audit.subject import SummedBy, subject
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.schedule import KINDS, CosineSchedule
from clipnoise.core.state import Public, State
from clipnoise.core.step import privatize
from clipnoise.errors import UserError
from clipnoise.gradients.units import PrivateUnits
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.run.choice import Choice, Tried, in_words, resolve
from clipnoise.run.job import run_job
from clipnoise.run.outcome import Clock
from clipnoise.run.results import privacy_statement, run_folder
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run
from clipnoise.studies.collect import collect
from clipnoise.studies.study import Study, load_study
from clipnoise.studies.tuning import Tune

DOCS = Path(__file__).parents[2] / "docs"
T = 12
COSINE: dict[str, Any] = {"kind": "cosine", "peak": 0.5, "warmup": 0.25, "final": 0.01}


def spec(method: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 0.5, "clip_norm": 1, **(method or {})},
            "privacy": {"epsilon": 8, "accountant": "rdp"},
            "training": {"expected_batch_size": 50, "steps": T, "evaluations": 4},
            "seed": 1,
            **changes,
        }
    )


def prepared(run: RunSpec, cache: Path) -> Run:
    calibration = budget(run)
    assert calibration is not None
    return Run.prepare(run, cache, "cpu", noise_multiplier=calibration.noise_multiplier)


def iterates(run: Run) -> list[Tensor]:
    return [run.state.theta, *(run.state.theta for _ in run.steps(Clock()))]


# In a run


def test_a_number_keeps_its_form_and_its_hash() -> None:
    method = to_mapping(spec())["method"]
    assert (method["learning_rate"], method["clip_norm"]) == (0.5, 1.0)
    assert spec().hash == "56e9d6ba9a9e"


@pytest.mark.long
def test_a_run_steps_at_the_rate_of_its_schedule(cache: Path) -> None:
    """Without momentum, the change of DP-SGD at the first step is in proportion to its rate."""
    plain, ours = (iterates(prepared(spec(m), cache)) for m in ({}, {"learning_rate": COSINE}))
    rate = CosineSchedule(**{k: v for k, v in COSINE.items() if k != "kind"}).at(1, T)
    assert rate == pytest.approx(0.5 / 3)
    assert torch.allclose(ours[1] - ours[0], (plain[1] - plain[0]) * rate / 0.5, atol=1e-7)


@pytest.mark.parametrize("method", ["dp-adambc", "dp-sgd", "dp-pmlf"])
def test_a_run_resumed_from_a_checkpoint_goes_on_with_the_schedule(
    method: str, cache: Path
) -> None:
    run = spec({"id": method, "learning_rate": COSINE, "clip_norm": {**COSINE, "kind": "linear"}})
    whole, half, rest = prepared(run, cache), prepared(run, cache), prepared(run, cache)
    expected = iterates(whole)[-1]
    for t in half.steps(Clock()):
        if t == 5:
            break
    rest.set_state(half.get_state())
    assert torch.equal(iterates(rest)[-1], expected)


def rows(results: Path, run: RunSpec) -> list[dict[str, str]]:
    text = (run_folder(results, run) / "metrics.csv").read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_the_rate_in_use_is_in_the_curves_of_a_run_with_a_schedule_alone(
    cache: Path, tmp_path: Path
) -> None:
    for run in (spec({"learning_rate": COSINE}), spec({"clip_norm": COSINE})):
        run_job(run, budget(run), results=tmp_path, cache=cache, weights=tmp_path, device="cpu")
    follows, constant = (
        rows(tmp_path, spec({name: COSINE})) for name in ("learning_rate", "clip_norm")
    )
    schedule = CosineSchedule(**{k: v for k, v in COSINE.items() if k != "kind"})
    steps = [int(row["step"]) for row in follows]
    assert steps == [0, 3, 6, 9, 12]
    rates = [float(row["learning_rate"]) for row in follows]
    assert rates == [schedule.at(max(1, t), T) for t in steps]
    assert all("learning_rate" not in row for row in constant)


# What ε covers


@pytest.mark.parametrize(
    "privacy", [{}, {"sampler": "cyclic", "noise": {"kind": "lambda-cgd", "cancelled": 0.8}}]
)
def test_the_noise_of_a_step_is_in_proportion_to_the_clip_norm_of_that_step(
    privacy: dict[str, Any], cache: Path
) -> None:
    """Divided by C_t, what is released is what a constant clip norm of 1 releases."""
    schedule = {**COSINE, "peak": 2.0}
    released: dict[str, list[Tensor]] = {"one": [], "many": []}
    norms: list[float] = []

    def taken(name: str, clip_norm: Any) -> None:
        run = prepared(spec({"clip_norm": clip_norm}, privacy={"epsilon": 8, **privacy}), cache)

        def cross(total: ClippedSum, query: Any, clipping: Clipping, *rest: Any) -> Any:
            nothing = ClippedSum(torch.zeros_like(run.state.theta))
            values = privatize(nothing, query, clipping, *rest)
            assert clipping.clip_norm is not None
            released[name].append(values[0] / clipping.clip_norm)
            norms.append(clipping.clip_norm)
            return values

        run.cross = cross
        iterates(run)

    taken("one", 1.0)
    norms.clear()
    taken("many", schedule)
    of_schedule = CosineSchedule(**{k: v for k, v in schedule.items() if k != "kind"})
    assert norms == [of_schedule.at(t, T) for t in range(1, T + 1)]
    for one, many in zip(*released.values(), strict=True):
        assert one.abs().max() > 0
        assert torch.allclose(one, many, rtol=1e-5)


def test_no_sum_exceeds_the_clip_norm_of_its_step(cache: Path) -> None:
    run = prepared(spec({"clip_norm": {"kind": "linear", "peak": 0.1, "final": 0.01}}), cache)
    seen = []

    def watched(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        assert clipping.clip_norm is not None
        seen.append((float(units.clipped_sum(indices[:1], clipping).norm()), clipping.clip_norm))
        return units.clipped_sum(indices, clipping)

    run.units = SummedBy.of(run.units, watched)
    iterates(run)
    assert len({clip_norm for _, clip_norm in seen}) == T
    assert all(norm <= clip_norm * (1 + 1e-5) for norm, clip_norm in seen)
    assert max(norm / clip_norm for norm, clip_norm in seen) > 0.99  # it was clipped


def test_epsilon_is_that_of_constant_hyper_parameters_and_the_largest_clip_norm_is_stated() -> None:
    plain, ours = spec(), spec({"learning_rate": COSINE, "clip_norm": {**COSINE, "peak": 1.0}})
    one, other = (privacy_statement(run, budget(run)) for run in (plain, ours))
    assert one == other
    assert other.clip_norm == 1.0
    assert plain.budget == ours.budget


def test_the_noise_bias_of_a_moment_follows_the_clip_norm() -> None:
    beta, constants = 0.9, Public(2.0, 10.0, 6)
    norms = [1.0, 0.7, 0.7, 0.2, 3.0, 1.0]
    state = State(torch.zeros(2, dtype=torch.float64))
    for t, norm in enumerate(norms, 1):
        state.step = t
        bias = state.noise_bias(constants, norm, beta)
        shares = [(1 - beta) * beta ** (t - i) / (1 - beta**t) for i in range(1, t + 1)]
        variances = map(constants.noise_variance, norms)
        assert bias == pytest.approx(sum(map(mul, shares, variances)), rel=1e-9)


# What is refused


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": {"learning_rate": {**COSINE, "kind": "cosin"}}}, "Did you mean 'cosine'"),
        ({"method": {"learning_rate": {**COSINE, "peek": 1}}}, "Did you mean 'peak'"),
        ({"method": {"learning_rate": {**COSINE, "final": 1}}}, r"final: must be at most the peak"),
        ({"method": {"learning_rate": {**COSINE, "warmup": 1}}}, r"warmup: .*less than 1, got 1"),
        (
            {"method": {"learning_rate": {"kind": "step", "peak": 1, "breakpoints": [0.5, 0.2]}}},
            "breakpoints: give shares of the steps in ascending order",
        ),
        ({"method": {"clip_norm": {**COSINE, "final": 0}, "id": "jme-adam"}}, "one number for all"),
        (
            {"method": {"clip_norm": {"kind": "exponential", "peak": 1, "final": 1e-15}}},
            "clip_norm",
        ),
        ({"method": {"learning_rate": COSINE, "id": "dp-schedule-free"}}, "one number for all"),
        ({"method": {"gamma": COSINE, "id": "dp-adam"}}, "schedules are for learning_rate, clip_n"),
        ({"privacy": {"noise_multiplier": COSINE}}, "compose T steps with one σ"),
    ],
)
def test_a_wrong_schedule_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        spec(values.pop("method", None), **values)


def test_a_method_cannot_be_another_one_in_a_later_step() -> None:
    with pytest.raises(TypeError, match="only the suite decides this"):
        type("Mine", (DPSGD,), {"at": lambda self, step, steps: self})


def test_an_audit_takes_numbers() -> None:
    with pytest.raises(UserError, match=r"dp-sgd\.clip_norm: give a number"):
        subject("dp-sgd", {"clip_norm": COSINE})


# In a study


def load(folder: Path, method: dict[str, Any]) -> Study:
    return load_panel(folder, [{"id": "dp-sgd", "clip_norm": 1, **method}])


def load_panel(folder: Path, methods: list[dict[str, Any]]) -> Study:
    panel = {
        "datasets": ["digits"],
        "models": ["logistic"],
        "epsilons": [8],
        "seeds": [1],
        "training": {"expected_batch_size": 50, "steps": T, "evaluations": T},
        "methods": methods,
    }
    content: dict[str, Any] = {"title": "Mine", "panels": {"one": panel}}
    path = folder / "mine.yaml"
    content["report"] = [{"kind": "table", "panels": "one"}]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_study(path)


def rates_of(study: Study) -> list[dict[str, Any]]:
    (search,) = study.searches.values()
    return [to_mapping(specs[0])["method"]["learning_rate"] for specs in search.configurations]


def test_a_search_tries_each_number_that_a_schedule_lists(tmp_path: Path) -> None:
    peaks = {**COSINE, "peak": [0.1, 1.0]}
    study = load(tmp_path, {"tune": {"grid": {"learning_rate": peaks}, "seeds": [11]}})
    assert rates_of(study) == [{**COSINE, "peak": peak} for peak in (0.1, 1.0)]


def test_a_search_draws_a_number_of_a_schedule_from_its_range() -> None:
    tune = Tune(seeds=(11,), ranges={"learning_rate": {**COSINE, "peak": [0.01, 100.0]}}, trials=3)
    tried = [one["learning_rate"] for one in tune.configurations()]
    assert tried[0] == {**COSINE, "peak": 1.0}  # the middle
    assert all({**one, "peak": 0.5} == COSINE for one in tried)
    assert len({one["peak"] for one in tried}) == 3


def test_a_run_of_a_search_is_called_by_its_schedule_in_words(tmp_path: Path) -> None:
    ends = {"kind": "linear", "peak": [0.1, 1.0]}
    study = load(tmp_path, {"tune": {"grid": {"learning_rate": ends}, "seeds": [11]}})
    names = [study.names[spec.hash] for spec in study.tuning_runs]
    assert [name.partition("tuning ")[2] for name in names] == [
        f"learning_rate linear from {peak}" for peak in (0.1, 1.0)
    ]
    climbing = {**ends, "peak": 3.19, "warmup": 0.1, "final": 0.0}
    said = in_words({"learning_rate": climbing, "clip_norm": 0.798, "weight_decay": None})
    assert said == "learning_rate linear from 3.19 (warmup 0.1), clip_norm 0.798"


@pytest.mark.parametrize("peak", [0.1, [1.0, 0.1], [1, 2, 3]])
def test_a_range_of_a_schedule_is_of_one_number(peak: Any) -> None:
    with pytest.raises(ValueError, match="ranges"):
        Tune(seeds=(11,), ranges={"learning_rate": {**COSINE, "peak": peak}}, trials=3)


def test_breakpoints_are_a_list_and_lists_of_them_are_candidates(tmp_path: Path) -> None:
    steps = {"kind": "step", "peak": 1.0, "warmup": 0.0, "factor": 0.1}
    grid = {"learning_rate": {**steps, "breakpoints": [[0.5], [0.25, 0.5]]}}
    study = load(tmp_path, {"tune": {"grid": grid, "seeds": [11]}})
    assert [one["breakpoints"] for one in rates_of(study)] == [[0.5], [0.25, 0.5]]


def test_what_was_chosen_is_what_is_trained_with(tmp_path: Path) -> None:
    grid = {"learning_rate": {**COSINE, "peak": [0.1, 1.0]}}
    run = load(tmp_path, {"tune": {"grid": grid, "seeds": [11]}}).runs[0].spec
    tried = tuple(
        Tried(values={"learning_rate": {**COSINE, "peak": peak}}, mean=peak, n=1, planned=1)
        for peak in (0.1, 1.0)
    )
    choice = Choice(metric="validation_accuracy", choice=tried[1].values, tried=tried)
    assert choice.edges == ["learning_rate"]
    resolved = to_mapping(resolve(run, choice))["method"]["learning_rate"]
    assert resolved == {**COSINE, "peak": 1.0}
    assert resolve(run, choice).hash == run.hash


@pytest.mark.parametrize(
    ("chosen", "edges"), [(0.1, ["rate"]), (1.0, []), ({**COSINE, "peak": 3.0}, ["rate"])]
)
def test_a_number_among_schedules_is_compared_with_the_other_numbers(
    chosen: object, edges: list[str]
) -> None:
    """A constant rate of 1 is no end of 0.1, 1 and 9, whatever the peaks beside them."""
    rates = [0.1, 1.0, 9.0, {**COSINE, "peak": 1.0}, {**COSINE, "peak": 3.0}]
    tried = tuple(Tried(values={"rate": rate}, mean=0.5, n=1, planned=1) for rate in rates)
    choice = Choice(metric="validation_accuracy", choice={"rate": chosen}, tried=tried)
    assert choice.edges == edges


def test_a_sweep_names_each_schedule_and_the_table_of_runs_has_its_peak(tmp_path: Path) -> None:
    swept = {"label": "η {learning_rate}", "sweep": {"learning_rate": {**COSINE, "peak": [0.1, 1]}}}
    study = load(tmp_path, swept)
    assert [run.label for run in study.runs] == [
        f"η cosine, peak {peak}, warmup 0.25, final 0.01" for peak in ("0.1", "1")
    ]
    runs = collect(study, tmp_path)[0].to_pylist()
    assert [float(run["learning_rate"]) for run in runs] == [0.1, 1.0]
    assert json.loads(runs[0]["hyperparameters"])["learning_rate"] == {**COSINE, "peak": 0.1}


def example_of_the_page() -> dict[str, Any]:
    text = (DOCS / "studies.md").read_text().partition("\n## Schedules\n")[2]
    example: dict[str, Any] = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return example


@pytest.mark.long
def test_the_example_of_the_page_trains_and_searches_as_it_says(
    cache: Path, tmp_path: Path
) -> None:
    study = load_panel(tmp_path, example_of_the_page()["methods"])
    sgd, adam = (run.spec for run in study.runs)
    run_job(sgd, budget(sgd), results=tmp_path, cache=cache, weights=tmp_path, device="cpu")
    rates = [float(row["learning_rate"]) for row in rows(tmp_path, sgd)]
    assert max(rates) == 3.0
    assert rates[-1] == min(rates) < 0.1
    assert [rate["peak"] for rate in rates_of(study)] == [0.01, 0.1]
    assert vars(adam.method)["clip_norm"].kind == "exponential"


def test_the_page_of_keys_lists_every_kind_with_its_keys() -> None:
    section = (DOCS / "studies.md").read_text().partition("\n## Schedules\n")[2]
    table = re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", section.partition("\n## ")[0], re.M)
    found = {kind: set(re.findall(r"`([a-z]+)`", keys)) for kind, keys in table[1:]}
    common = {"kind", "peak", "warmup"}
    assert found == {kind.kind: {one.name for one in fields(kind)} - common for kind in KINDS}
