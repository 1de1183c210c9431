"""A run is reproducible bit for bit, sees the batches of its seed, and always ends as a result."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from budgets import budget
from torch import nn

from clipnoise.core.method import Method
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.models.dense import Logistic
from clipnoise.run import trainer
from clipnoise.run.outcome import Clock
from clipnoise.run.provenance import Provenance
from clipnoise.run.results import read_run, run_folder, write_run
from clipnoise.run.setup import sampler
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Outcome, Run, train

METHODS: list[dict[str, Any]] = [
    {"id": "sgd", "learning_rate": 0.5},
    {"id": "dp-adambc", "learning_rate": 0.01, "clip_norm": 1},
    {"id": "stp-adam", "learning_rate": 0.01, "clip_norm": 3, "gamma_scale": 0.1},
    {"id": "dp-pmlf", "learning_rate": 1, "clip_norm": 1},
]
TIMES = {"seconds", "examples_per_second", "peak_memory_mb"}


def spec(method: dict[str, Any] = METHODS[1], **changes: Any) -> RunSpec:
    noisy = "clip_norm" in method
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": method,
            "privacy": {"epsilon": 8} if noisy else None,
            "training": {"expected_batch_size": 50, "steps": 6, "evaluations": 3},
            "seed": 1,
            **changes,
        }
    )


def go(run: RunSpec, cache: Path) -> Outcome:
    return train(run, cache=cache, calibration=budget(run))


def measured(outcome: Outcome) -> list[dict[str, Any]]:
    rows = [asdict(row) for row in outcome.metrics]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.mark.quick(method=METHODS[1:2])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["id"])
def test_a_run_repeats_bit_for_bit_whatever_ran_before(method: dict[str, Any], cache: Path) -> None:
    first = measured(go(spec(method), cache))
    torch.manual_seed(12345)
    assert measured(go(spec(method), cache)) == first
    assert measured(go(spec(method, seed=2), cache)) != first


def test_four_calls_lead_from_a_step_to_a_clipped_sum(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.prepare(spec(), cache, "cpu", noise_multiplier=1.0)
    kind, called = type(run.engine), []
    original = kind.clipped_sum

    def clipped_sum(engine: Any, *arguments: Any) -> torch.Tensor:
        names = [frame.name for frame in traceback.extract_stack()[:-1]]
        called.append(names[names.index("step") + 1 :])
        return original(engine, *arguments)

    monkeypatch.setattr(kind, "clipped_sum", clipped_sum)
    run.step(run.sampler.sample())
    assert called == [["step", "clipped_sum", "clipped_sum"]]  # and then the engine's


@pytest.mark.quick(method=METHODS[1:2])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["id"])
def test_passes_in_bfloat16_are_another_run_with_the_same_budget(
    method: dict[str, Any], cache: Path
) -> None:
    full = spec(method)
    low = replace(full, training=replace(full.training, precision="bfloat16"))
    assert low.hash != full.hash
    assert from_mapping(to_mapping(low)) == low
    here, there = go(full, cache), go(low, cache)
    assert measured(there) == measured(go(low, cache))
    assert measured(there)[1:] != measured(here)[1:]
    assert measured(there)[0] == measured(here)[0]
    assert [m.epsilon for m in there.metrics] == [m.epsilon for m in here.metrics]
    assert there.metrics[-1].test_loss == pytest.approx(here.metrics[-1].test_loss, rel=0.1)


def test_training_leaves_the_default_generator_alone(cache: Path) -> None:
    before = torch.get_rng_state()
    go(spec(), cache)
    assert torch.equal(torch.get_rng_state(), before)


class Forgetful(Logistic):
    """Logistic regression with dropout."""

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), super().build(signature, weights))


def test_dropout_has_a_separate_random_stream(cache: Path) -> None:
    run = replace(spec(), model=Forgetful())
    first, before = measured(go(run, cache)), torch.get_rng_state()
    torch.manual_seed(12345)
    assert measured(go(run, cache)) == first != measured(go(spec(), cache))
    torch.set_rng_state(before)
    go(run, cache)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_seed_gives_every_method_the_same_batches() -> None:
    drawn = [
        [batch.tolist() for batch in (stream.sample() for _ in range(5))]
        for stream in (sampler(spec(method)) for method in METHODS)
    ]
    assert all(batches == drawn[0] for batches in drawn)


def test_physical_batches_change_memory_and_not_the_result(cache: Path) -> None:
    whole = spec()
    pieces = replace(whole, training=replace(whole.training, physical_batch_size=7))
    one, other = go(whole, cache), go(pieces, cache)
    assert other.metrics[-1].train_loss == pytest.approx(one.metrics[-1].train_loss, rel=1e-5)


def test_every_evaluation_records_the_epsilon_spent(cache: Path) -> None:
    run = spec()
    outcome = go(run, cache)
    assert [row.step for row in outcome.metrics] == run.evaluation_steps()
    spent = [row.epsilon for row in outcome.metrics]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert spent[-1] <= 8


def test_a_step_on_an_empty_batch_is_a_step(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def sample(self) -> torch.Tensor:
            return torch.zeros(0, dtype=torch.int64)

    monkeypatch.setattr(trainer, "sampler", lambda procedure: Nobody())
    outcome = go(spec(), cache)
    assert (outcome.status, outcome.steps_done) == ("completed", 6)
    assert outcome.cost["processed"] == 0
    assert outcome.metrics[-1].train_loss != outcome.metrics[0].train_loss  # the noise moved it


def test_a_run_that_meets_nan_is_a_result_with_its_step(cache: Path, tmp_path: Path) -> None:
    run = spec({"id": "sgd", "learning_rate": 1e38})
    outcome = go(run, cache)
    assert outcome.status == "diverged"
    assert outcome.reason is not None
    assert f"step {outcome.steps_done}" in outcome.reason
    folder = run_folder(tmp_path, run)
    summary = write_run(folder, run, outcome, None, Provenance("cpu"))
    files = read_run(folder)
    assert files is not None
    assert files.summary["status"] == summary["status"] == "diverged"
    assert files.summary["privacy"]["claim"] == "non-private"


def test_what_is_written_is_what_is_read(cache: Path, tmp_path: Path) -> None:
    run = spec()
    outcome, calibration = go(run, cache), budget(run)
    folder = run_folder(tmp_path, run)
    write_run(folder, run, outcome, calibration, Provenance("cpu"))
    files = read_run(folder)
    assert files is not None
    assert calibration is not None
    assert float(files.metrics[-1]["test_loss"]) == outcome.metrics[-1].test_loss
    said = files.summary["privacy"]
    assert said["claim"] == "guarantee"
    assert said["noise_multiplier"] == calibration.noise_multiplier
    assert said["sensitivity"] == 1 / 50
    assert said["epsilon"] <= 8
    assert math.isclose(said["delta"], 1 / 1300)


@pytest.mark.parametrize("harm", ["truncate", "empty", "other hash", "no privacy"])
def test_a_damaged_result_is_named(harm: str, cache: Path, tmp_path: Path) -> None:
    run = spec()
    folder = run_folder(tmp_path, run)
    write_run(folder, run, go(run, cache), budget(run), Provenance("cpu"))
    path = folder / "summary.json"
    text = path.read_text()
    broken = {
        "truncate": text[: len(text) // 2],
        "empty": "",
        "other hash": text.replace(run.hash, "0" * 12),
        "no privacy": text.replace('"privacy"', '"secrecy"'),
    }
    path.write_text(broken[harm])
    with pytest.raises(UserError, match=r"summary\.json: damaged result file"):
        read_run(folder)


def test_a_dataset_that_is_not_prepared_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clipnoise data prepare digits"):
        go(spec(), tmp_path)


def test_a_method_without_its_public_data_says_how_to_provide_it(cache: Path) -> None:
    method = {"id": "dp-r-pub", "learning_rate": 0.1, "clip_norm": 1}
    with pytest.raises(UserError, match="public_examples"):
        go(spec(method), cache)


@pytest.mark.parametrize(
    "budget_of_run",
    [
        {"sampler": "truncated-poisson", "largest_batch": 100},
        {"sampler": "shuffled", "accountant": "per-epoch"},
        {"sampler": "fixed-size", "accountant": "rdp-replace"},
    ],
    ids=lambda changes: changes["sampler"],
)
def test_samplers_with_an_accountant_for_them_give_a_guarantee(
    budget_of_run: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    run = spec(privacy={"epsilon": 8, **budget_of_run})
    spent = budget(run)
    summary = write_run(tmp_path, run, go(run, cache), spent, Provenance("cpu"))
    assert summary["privacy"]["claim"] == "guarantee"
    assert 7.99 < summary["privacy"]["epsilon"] <= 8
    assert len(sampler(run).sample()) <= 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_parameter_that_is_not_finite_ends_a_run(
    value: float, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(method: Method, *given: Any) -> torch.Tensor:
        return torch.full_like(given[0][0], 0.0).index_fill_(0, torch.tensor([5]), value)

    monkeypatch.setattr(type(spec(METHODS[0]).method), "update", update)
    outcome = go(spec(METHODS[0]), cache)
    assert (outcome.status, outcome.steps_done) == ("diverged", 1)
    assert outcome.reason == "a parameter is not finite after step 1"


def test_parameters_whose_sum_overflows_are_finite_still(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = torch.finfo(torch.float32).max

    def update(method: Method, *given: Any) -> torch.Tensor:
        return torch.full_like(given[0][0], 0.0).index_fill_(0, torch.arange(2), huge)

    monkeypatch.setattr(type(spec(METHODS[0]).method), "update", update)
    outcome = go(spec(METHODS[0]), cache)
    assert outcome.reason == "a parameter is not finite after step 2"  # the second adds it again


def test_time_in_steps_is_told_apart_from_work_of_the_processors() -> None:
    waited: list[int] = []
    clock = Clock(synchronize=lambda: waited.append(1))
    with clock.training(3):
        time.sleep(0.2)
    assert clock.cost()["training_seconds"] >= 0.2
    assert clock.cost()["cpu_seconds"] < 0.1
    assert len(waited) == 2  # a GPU's work is waited for before and after a step
    before = time.process_time()
    with clock.training(4):
        while time.process_time() < before + 0.05:
            pass
    assert 0.05 <= clock.cost()["cpu_seconds"] < 0.2
    resumed = Clock()
    resumed.set_state(clock.get_state())
    assert resumed.cost() == clock.cost()
    assert resumed.cost()["processed"] == 7


def test_a_run_records_what_its_steps_cost(cache: Path, tmp_path: Path) -> None:
    run = spec()
    summary = write_run(tmp_path, run, go(run, cache), budget(run), Provenance("cpu"))
    assert summary["cpu_seconds"] > 0
    assert 0 < summary["training_seconds"] < summary["seconds"] + 60
    speed = summary["processed"] / summary["training_seconds"]
    assert summary["examples_per_second"] == pytest.approx(speed)
