"""Public examples of another dataset: used, recorded in the result, refused if they do not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from clipnoise.data.digits import Digits, PrintedDigits
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run, train
from clipnoise.studies.config import Config
from clipnoise.studies.plan import Plan

SCALED = {"id": "adadps-rmsprop", "learning_rate": 0.05, "clip_norm": 1}


def spec(public: Any = "printed-digits", method: Any = SCALED, **changes: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": method,
            "privacy": {"epsilon": 8},
            "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 1},
            "seed": 1,
            "public": public,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    for dataset in (Digits(), PrintedDigits()):
        dataset.prepare(folder)
    return folder


@pytest.mark.long
def test_the_result_says_where_its_public_examples_came_from(cache: Path) -> None:
    run = spec()
    target = run.budget
    assert target is not None
    provenance = train(run, cache=cache, calibration=calibrate(target)).provenance
    assert provenance["public dataset"] == "printed-digits"
    assert provenance["public source"] == PrintedDigits.source
    assert provenance["source"] == Digits.source


def test_the_private_examples_stay_all_of_the_datasets(cache: Path) -> None:
    run = spec()
    assert run.unit.count == Digits().sizes()["train"]
    assert run.mechanism.sampling_rate == 50 / run.unit.count


def test_other_public_examples_give_another_result(cache: Path) -> None:
    target = spec().budget
    assert target is not None
    spent = calibrate(target)
    printed = train(spec(), cache=cache, calibration=spent).metrics[-1]
    other = spec({"id": "printed-digits", "split_seed": 1})
    assert train(other, cache=cache, calibration=spent).metrics[-1] != printed


def test_the_public_dataset_is_part_of_a_run_s_identity() -> None:
    assert to_mapping(spec(None, {"id": "dp-sgd", **_rates()}))["public"] is None
    assert spec().hash != spec({"id": "printed-digits", "split_seed": 1}).hash
    assert from_mapping(to_mapping(spec())) == spec()


def _rates() -> dict[str, float]:
    return {"learning_rate": 1, "clip_norm": 1}


def test_code_of_the_public_dataset_is_code_of_the_run() -> None:
    drawn = {"id": "synthetic-images", "shape": [1, 8, 8]}
    assert fingerprint(spec(drawn)) != fingerprint(spec())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"id": "dp-sgd", **_rates()}}, "public: dp-sgd uses no public data"),
        ({"dataset": {"id": "digits", "public_examples": 9}}, "already sets public examples aside"),
        ({"public": "synthetic"}, "public.id: synthetic holds features"),
        ({"public": "digits"}, "public.id: digits has the same source as the private dataset"),
        (
            {"public": "digits-users"},
            "public.id: digits-users has the same source as the private dataset",
        ),
        ({"public": "printed"}, "Did you mean 'printed-digits'"),
    ],
    ids=str,
)
def test_public_data_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(**changes)


STUDY = """
title: Public data of another kind
defaults: {training: {expected_batch_size: 50, steps: 2}}
panels:
  elsewhere:
    datasets: [digits]
    models: [logistic]
    public: printed-digits
    epsilons: [8]
    seeds: [1]
    methods:
      - {id: dp-sgd, learning_rate: 1, clip_norm: 1}
      - {id: adadps-rmsprop, learning_rate: 0.05, clip_norm: 1}
report: [{kind: table, panels: elsewhere}]
"""


def test_a_panel_gives_public_data_to_the_methods_that_use_them(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.yaml"
    path.write_text(STUDY)
    plan = Plan.from_values({"studies": [os.fspath(path)]}, tmp_path)
    runs = {run.spec.method.id: run.spec for run in plan.study(plan.configured[0]).runs}
    cache = parse(Config, {}, file="config.yaml").cache
    assert plan.inputs(runs["dp-sgd"].hash)["data"] == [f"{cache}/digits/manifest.json"]
    assert plan.inputs(runs["adadps-rmsprop"].hash)["data"] == [
        f"{cache}/digits/manifest.json",
        f"{cache}/printed-digits/manifest.json",
    ]
    assert plan.preparation("printed-digits") == "printed-digits"


def test_printed_digits_look_like_written_ones(cache: Path) -> None:
    written, printed = Digits().load(cache).train.dense(), PrintedDigits().load(cache).train.dense()
    for digit in (0, 1, 4, 7):
        means = [one.inputs[one.targets == digit].mean(0).flatten() for one in (written, printed)]
        both = torch.stack([mean - mean.mean() for mean in means])
        assert torch.cosine_similarity(both[0], both[1], dim=0) > 0.5


@pytest.mark.parametrize("given", [20, 60])
def test_a_step_takes_all_public_examples_once_where_a_batch_of_50_holds_them(
    given: int, cache: Path
) -> None:
    run = Run.prepare(spec(None, dataset={"id": "digits", "public_examples": given}), cache, "cpu")
    assert run.public is not None
    assert run.splits.public is not None
    every = run.splits.public.dense()
    mean = run.engine.mean_gradient(every.inputs, every.targets, run.state.theta)
    same = [torch.allclose(run.public.gradient(run.state.theta, step), mean) for step in (1, 2)]
    assert same == [given == 20] * 2
