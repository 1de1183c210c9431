"""A diagnosis changes one thing of a private run at a time, and never passes for a private run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from budgets import budget
from every_method import FAMILIES, METHODS, required
from reporting_data import draw_figure, item_data, run_row, write_table

from clipnoise.cli.program import run as clipnoise
from clipnoise.errors import UserError
from clipnoise.methods.base import example, methods
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.counterfactual import Counterfactual
from clipnoise.report.records import collected, read_runs
from clipnoise.run.outcome import Clock
from clipnoise.run.provenance import Provenance
from clipnoise.run.results import privacy_statement, run_folder, write_run
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run, train
from clipnoise.studies.columns import RUN_COLUMNS
from clipnoise.studies.diagnosis import CHANGES
from clipnoise.studies.study import Study, load_study
from clipnoise.tracking.view import budget_label

NEITHER, NOISELESS = {"noise": 0, "clipping": False}, {"noise": 0}
DP_SGD = {"id": "dp-sgd", "learning_rate": 0.5, "clip_norm": 1}
STUDY = """
title: Tiny
panels:
  main:
    datasets: [digits]
    models: [logistic]
    epsilons: [1, 8]
    seeds: [1, 2]
    training: {expected_batch_size: 50, steps: 4}
    privacy: {delta: 0.0001}
    tuning: {seeds: [101]}
    methods:
    - {id: sgd, learning_rate: 1}
    - {id: dp-adam, label: Adam, learning_rate: 0.1, clip_norm: 1}
    - {id: dp-sgd, clip_norm: 1, tune: {grid: {learning_rate: [0.3, 3]}}}
    - {id: dp-sgd-quantile, learning_rate: 0.1, clip_norm: 1}
report:
- {kind: table, panels: main}
"""


def spec(counterfactual: dict[str, Any] | None, method: Any = DP_SGD, **privacy: Any) -> RunSpec:
    noisy = example(methods()[method["id"]]).query.draws
    asked = {"epsilon": 8, **privacy} if noisy else None
    if counterfactual is not None:
        assert asked is not None
        asked["counterfactual"] = counterfactual
    return from_mapping(
        {
            "dataset": "digits",
            "model": methods()[str(method["id"])].made_for or "logistic",
            "method": method,
            "privacy": asked,
            "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 1},
            "seed": 1,
        }
    )


def parameters(run: RunSpec, cache: Path, sigma: float | None = None) -> Any:
    calibration = budget(run)
    if sigma is None:
        sigma = 0.0 if calibration is None else calibration.noise_multiplier
    begun = Run.prepare(run, cache, "cpu", noise_multiplier=sigma)
    assert list(begun.steps(Clock()))[-1] == 4
    return begun.state.theta


@pytest.mark.long
def test_without_clipping_and_noise_a_private_method_takes_the_steps_of_its_plain_one(
    cache: Path,
) -> None:
    plain = parameters(spec(None, {"id": "sgd", "learning_rate": 0.5}), cache)
    assert parameters(spec(NEITHER), cache).allclose(plain, atol=1e-6)
    assert not parameters(spec(NOISELESS), cache).allclose(plain, atol=1e-3)


def test_a_share_of_the_noise_is_the_run_at_that_share_of_sigma(cache: Path) -> None:
    sigma = budget(spec(None)).noise_multiplier  # type: ignore[union-attr]
    less = parameters(spec({"noise": 0.1}), cache)
    assert less.equal(parameters(spec(None), cache, 0.1 * sigma))
    assert parameters(spec(NOISELESS), cache).equal(parameters(spec(None), cache, 0.0))


def test_without_clipping_the_noise_is_that_of_the_clip_norm(cache: Path) -> None:
    """Where no gradient is longer than the clip norm, there is no clipping to leave out."""
    long = {**DP_SGD, "clip_norm": 1000}
    assert parameters(spec({"clipping": False}, long), cache).allclose(
        parameters(spec(None, long), cache), rtol=1e-4, atol=1e-3
    )
    assert not parameters(spec({"clipping": False}), cache).allclose(
        parameters(spec(None), cache), atol=1e-3
    )


@pytest.mark.parametrize("changed", [NEITHER, NOISELESS, {"clipping": False}, {"noise": 0.1}])
def test_a_changed_run_claims_nothing_and_says_so_wherever_it_is_named(
    changed: dict[str, Any], cache: Path
) -> None:
    private, run = spec(None), spec(changed)
    statement = privacy_statement(run, budget(run))
    assert (statement.claim, statement.epsilon, statement.covers) == ("non-private", None, None)
    assert privacy_statement(private, budget(private)).claim == "guarantee"
    outcome = train(run, cache=cache, calibration=budget(run))
    assert {row.epsilon for row in outcome.metrics} == {None}
    assert run.budget_label.endswith(", non-private")
    assert budget_label(to_mapping(run)).endswith(", non-private")
    assert "/non-private/" in run.folder
    assert run.hash != private.hash
    assert from_mapping(to_mapping(run)) == run
    assert "counterfactual" not in to_mapping(private)["privacy"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (NEITHER, "without noise or clipping"),
        (NOISELESS, "without noise"),
        ({"clipping": False}, "without clipping"),
        ({"noise": 0.1}, "noise × 0.1"),
        ({"noise": 0.1, "clipping": False}, "without clipping, noise × 0.1"),
    ],
)
def test_a_label_says_what_was_asked_for_and_what_was_changed(
    changed: dict[str, Any], words: str
) -> None:
    same = Counterfactual(**changed)
    assert Privacy(epsilon=8, counterfactual=same).label == f"eps=8, {words}, non-private"
    assert Privacy(noise_multiplier=0.5).label == "sigma=0.5"


@pytest.mark.parametrize(
    ("changed", "privacy", "message"),
    [
        ({}, {}, "changes nothing"),
        ({"noise": 1.5}, {}, "noise"),
        (NOISELESS, {"release": "strict", "secure_noise": True}, "release: strict"),
    ],
)
def test_what_makes_no_sense_is_refused(
    changed: dict[str, Any], privacy: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        spec(changed, **privacy)


def test_a_clip_norm_that_follows_from_what_is_clipped_cannot_do_without_clipping() -> None:
    quantile = {**DP_SGD, "id": "dp-sgd-quantile"}
    assert spec(NOISELESS, quantile).noise_factor == 0
    with pytest.raises(UserError, match="clipping: must be true for dp-sgd-quantile"):
        spec(NEITHER, quantile)


ON_EXAMPLES = [
    name
    for name in METHODS
    if (kind := methods()[name])
    and example(kind).private
    and example(kind).query.adjacency == "add-remove"
    and not (example(kind).uses_public_data() or example(kind).uses_side_information)
    and not example(kind).query.of.spends  # without noise and clipping nothing is minimised
]


@pytest.mark.quick(name=FAMILIES)
@pytest.mark.parametrize("name", ON_EXAMPLES)
def test_every_method_takes_steps_without_noise_and_clipping(name: str, cache: Path) -> None:
    method = {"id": name, **required(name)}
    run = spec(NOISELESS if example(methods()[name]).query.of.extra else NEITHER, method)
    assert parameters(run, cache).isfinite().all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workflow" / "studies").mkdir(parents=True)
    (tmp_path / "workflow" / "studies" / "tiny.yaml").write_text(STUDY)
    (tmp_path / "config.yaml").write_text("studies: [tiny]\n")
    return tmp_path


def diagnosed(folder: Path, *words: str) -> Study:
    out = folder / "workflow" / "studies" / "tiny-diagnosis.yaml"
    given = ["--config", str(folder / "config.yaml"), "--out", str(out)]
    assert clipnoise(["diagnose", "tiny", *given, *words]) == 0
    return load_study(out)


def test_the_study_repeats_the_private_runs_and_changes_one_thing_each(folder: Path) -> None:
    study = diagnosed(folder, "--method", "Adam", "--epsilon", "8")
    asked = load_study(folder / "workflow" / "studies" / "tiny.yaml")
    there = {
        run.spec.hash
        for run in asked.runs
        if run.label == "Adam" and run.spec.budget_label == "eps=8"
    }
    assert len(study.panels) == len(CHANGES)
    hashes = {run.spec.hash for run in study.runs if run.panel.endswith("-asked")}
    assert hashes == there  # the finished runs are used
    by_change = {run.panel.split("-1-")[-1]: run.spec for run in study.runs}
    assert by_change["more-steps"].steps == 8
    assert {name for name, one in by_change.items() if one.protects} == {"asked", "more-steps"}
    sigmas = {one.budget.key for name, one in by_change.items() if name != "more-steps"}  # type: ignore[union-attr]
    assert len(sigmas) == 1


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("tiny", "reports/tiny-diagnosis/report.pdf"),
        ("paper/tiny", "reports/paper/tiny-diagnosis.pdf"),
    ],
)
def test_it_prints_the_report_that_runs_the_study(
    name: str, report: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "workflow" / "studies" / "paper").mkdir()
    (folder / "workflow" / "studies" / "paper" / "tiny.yaml").write_text(STUDY)
    words = ["diagnose", name, "--config", str(folder / "config.yaml"), "--epsilon", "8"]
    assert clipnoise([*words, "--method", "Adam"]) == 0
    assert f"snakemake --cores all {report}\n" in capsys.readouterr().out


def test_what_is_tuned_takes_the_chosen_value_and_is_needed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["diagnose", "tiny", "--config", str(folder / "config.yaml"), "--method", "dp-sgd"]
    assert clipnoise(given) == 2
    assert "make the report of the study first" in capsys.readouterr().err
    study = load_study(folder / "workflow" / "studies" / "tiny.yaml")
    for key, search in study.searches.items():
        tried = [{"values": {"learning_rate": 3}, "mean": 0.9, "n": 1, "planned": 1}]
        choice = {"metric": search.metric, "choice": {"learning_rate": 3}, "tried": tried}
        path = folder / "results" / "tuning" / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(choice))
    made = diagnosed(folder, "--method", "dp-sgd")
    assert {run.spec.method.learning_rate for run in made.runs} == {3}  # type: ignore[attr-defined]
    assert not made.searches


def test_each_search_has_a_panel_with_what_it_chose(folder: Path) -> None:
    path = folder / "workflow" / "studies" / "tiny.yaml"
    values = yaml.safe_load(STUDY)
    (panel,) = values["panels"].values()
    for method in panel["methods"]:
        if "tune" in method:
            method["tune"] |= {"searches": 2, "seeds": [101, 102]}
    path.write_text(yaml.safe_dump(values))
    study = load_study(path)
    rates = {}
    for number, (key, search) in enumerate(study.searches.items()):
        rate = search.configurations[number % len(search.configurations)][0].method.learning_rate
        tried = [{"values": {"learning_rate": rate}, "mean": 0.9, "n": 1, "planned": 1}]
        choice = {"metric": search.metric, "choice": {"learning_rate": rate}, "tried": tried}
        chosen = folder / "results" / "tuning" / f"{key}.json"
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(json.dumps(choice))
        rates[key] = rate
    asked = {
        (run.spec.seed, rates[run.spec.tuning.key])
        for run in study.runs
        if run.spec.tuning is not None
    }
    made = diagnosed(folder, "--method", "dp-sgd")
    repeated = {
        (run.spec.seed, run.spec.method.learning_rate)  # type: ignore[attr-defined]
        for run in made.runs
        if run.panel.endswith("-asked")
    }
    assert repeated == asked


def test_a_method_that_needs_its_clipping_keeps_it(folder: Path) -> None:
    study = diagnosed(folder, "--method", "dp-sgd-quantile", "--epsilon", "1")
    assert len(study.panels) == len(CHANGES) - 2
    assert all(run.spec.clips for run in study.runs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "adam"], "Did you mean 'Adam'?"),
        (["--epsilon", "2"], "Allowed: 1, 8."),
        (["--panel", "mian"], "Did you mean 'main'?"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_there_are(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--config", str(folder / "config.yaml")]
    assert clipnoise(["diagnose", "tiny", *given, *words]) == 2
    assert message in capsys.readouterr().err


LEVELS = {"asked": 0.6, "neither": 0.9, "noiseless": 0.8, "unclipped": 0.65, "more-data": 0.78}


def runs_of(levels: dict[str, float], tmp_path: Path) -> pd.DataFrame:
    rows = [
        run_row(
            panel=name,
            budget="eps=1" if name in ("asked", "more-steps") else "eps=1, changed, non-private",
            seed=seed,
            test_accuracy=level + 0.001 * seed * (1 + rank % 2) + 0.0005 * (seed == rank),
        )
        for rank, (name, level) in enumerate(levels.items())
        for seed in (1, 2, 3)
    ]
    return read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "The noise costs more"),
        ({"noiseless": 0.62, "unclipped": 0.85}, "The clipping costs more"),
        ({"noiseless": 0.65, "unclipped": 0.65}, "do not tell whether noise or clipping"),
    ],
)
def test_three_sentences_say_what_costs_most_where_the_seeds_tell(
    changes: dict[str, float], verdict: str, tmp_path: Path
) -> None:
    levels = {**LEVELS, "more-steps": 0.61, **changes}
    runs = runs_of(levels, tmp_path)
    titles = tuple(CHANGES[name] for name in levels)
    data = item_data("diagnosis", runs, panels=tuple(levels), titles=titles, together=True)
    figure, table = data.item.blocks(data)
    assert verdict in figure.caption
    assert figure.caption.count(". ") == 2
    cells = {row[0]: row for row in table.rows}
    assert cells["no clipping, no noise"][1] == "non-private"
    assert cells["no clipping, no noise"][3].startswith("30.2")
    drawn = draw_figure(data)
    assert drawn.count(b"non-private") >= 4
    lacking = runs[runs["panel"] != "more-steps"]
    data = item_data("diagnosis", lacking, panels=tuple(levels), titles=titles, together=True)
    lacks = "Nothing is said without the panels 'twice the steps'."
    assert next(iter(data.item.blocks(data))).caption == lacks


@pytest.mark.long
def test_no_table_puts_a_changed_run_at_an_epsilon(folder: Path, cache: Path) -> None:
    path = folder / "workflow" / "studies" / "tiny.yaml"
    path.write_text(STUDY.replace("seeds: [1, 2]", "seeds: [1]"))
    study = diagnosed(folder, "--method", "Adam", "--epsilon", "8")
    for run in study.runs:
        calibration, provenance = budget(run.spec), Provenance("cpu")
        outcome = train(run.spec, cache=cache, calibration=calibration)
        place = run_folder(folder / "results", run.spec)
        write_run(place, run.spec, outcome, calibration, provenance)
    runs, _ = collected(study, folder / "results")
    changed = runs[runs["claim"] == "non-private"]
    assert len(changed) == 4
    assert changed["epsilon"].isna().all()
    assert changed["epsilon_achieved"].isna().all()
    assert set(runs[runs["claim"] == "guarantee"]["budget"]) == {"eps=8"}
    assert not set(changed["budget"]) & {"eps=8"}
    assert yaml.safe_load(study.path.read_text())["scales"] == "none"
