"""Training in one's own loop is what a study's run is, and refuses what cannot be private."""

from __future__ import annotations

import copy
import doctest
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import clipnoise
from clipnoise.core.schedule import CosineSchedule
from clipnoise.errors import UserError
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PrivateUnits
from clipnoise.methods.base import ClippedMean, PrivateMethod, Public, Released, State
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.noise.tree import TreeNoise
from clipnoise.privacy.units import Example
from clipnoise.run import private
from clipnoise.run.own_examples import digest_of, users_of
from clipnoise.run.private import PrivateTraining
from clipnoise.run.setup import build_network
from clipnoise.run.spec import RunSpec
from clipnoise.run.train import Run, train
from clipnoise.run.trainer import Trainer
from clipnoise.studies.study import load_study

QUICKSTART = Path(__file__).parents[2] / "workflow" / "studies" / "quickstart.yaml"
LOSS = nn.CrossEntropyLoss(reduction="none")
INPUTS = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
DATA = (INPUTS, (INPUTS[:, 0] > 0).long())
SETTINGS: dict[str, Any] = {
    "method": "dp-adam",
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "epsilon": 3,
    "delta": 1e-5,
    "steps": 6,
    "expected_batch_size": 40,
}


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), *middle, nn.Linear(4, 2))


def start(model: nn.Module | None = None, data: Any = DATA, **changes: Any) -> PrivateTraining:
    settings = {"loss": LOSS, **SETTINGS, **changes}
    given = {name: value for name, value in settings.items() if value is not None}
    return clipnoise.private(model or network(), data=data, **given)


def parameters(training: PrivateTraining, model: nn.Module, steps: int | None = None) -> Tensor:
    for step in training:
        if step == steps:
            break
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


# The same code as a study's


def quickstart_run(model: str, method: str) -> RunSpec:
    return next(
        run.spec
        for run in load_study(QUICKSTART).runs
        if (run.panel, run.spec.model.id, run.label) == ("comparison", model, method)
    )


@pytest.mark.quick(model=["logistic"], method=["sgd", "dp-adambc"])
@pytest.mark.parametrize(
    ("model", "method"),
    [("logistic", name) for name in ("sgd", "dp-sgd", "dp-adam", "dp-adambc", "stp-adam")]
    + [("logistic", "dp-pmlf"), ("cnn-small", "dp-adambc")],
)
def test_parameters_are_bit_for_bit_those_of_a_run_of_the_quickstart(
    model: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, prepared = quickstart_run(model, method), []
    spec.dataset.prepare(tmp_path)
    prepare = Run.prepare

    def keep(*words: Any, **options: Any) -> Run:
        prepared.append(prepare(*words, **options))
        return prepared[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Run, "prepare", keep)
        calibration = None if spec.budget is None else calibrate(spec.budget)
        assert train(spec, cache=tmp_path, calibration=calibration).status == "completed"
    asked: dict[str, Any] = {} if spec.privacy is None else {"epsilon": spec.privacy.epsilon}
    own = build_network(spec)
    training = clipnoise.private(
        own,
        spec.dataset.signature.task.losses,
        spec.dataset.load(tmp_path).train.dense().take(slice(None)),
        method=spec.method,
        epochs=spec.training.epochs,
        expected_batch_size=spec.training.expected_batch_size,
        seed=spec.seed,
        **asked,
    )
    reached = parameters(training, own)
    assert training.step == spec.steps == 195
    assert torch.equal(reached, prepared[0].state.theta)
    if calibration is not None:
        assert training.spent == training.statement.epsilon == calibration.epsilon


def test_what_epsilon_depends_on_is_stated_by_nothing_but_the_settings() -> None:
    made = Mechanism(
        unit=Example(count=200),
        expected_batch_size=40,
        steps=6,
        query=ClippedMean(),
        sampler="cyclic",
        noise=TreeNoise(),
    )
    training = start(sampler="cyclic", noise={"kind": "tree"})
    assert training._trainer.procedure.mechanism == made
    asked = Privacy(epsilon=3, delta=1e-5, sampler="cyclic", noise=TreeNoise())
    assert training.statement.epsilon == calibrate(made.budget(asked, None)).epsilon


@pytest.mark.long
def test_the_example_of_the_docstring_works() -> None:
    assert doctest.testmod(private).failed == 0


@pytest.mark.long
def test_importing_the_package_loads_nothing_heavy() -> None:
    script = "import clipnoise, sys; assert 'torch' not in sys.modules; clipnoise.private"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@dataclass(frozen=True, kw_only=True)
class DPLion(PrivateMethod):
    """The sign of the released gradient."""

    id = "dp-sign"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        return -self.learning_rate * released[0].sign()


@pytest.mark.long
def test_a_method_of_the_script_itself_is_trained_with(tmp_path: Path) -> None:
    method, model = DPLion(learning_rate=0.01, clip_norm=1.0), network()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    own = {"method": method, "learning_rate": None, "clip_norm": None, "steps": 1}
    training = start(model, **own)
    moved = (parameters(training, model) - before).abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.01), atol=1e-6)
    training.save(tmp_path / "saved")


# Privacy


@pytest.mark.long
def test_iterators_together_take_no_more_steps_than_the_budget_is_for() -> None:
    training = start()
    first, second = iter(training), iter(training)
    taken = [next(one) for one in (first, second, first, second, first, second)]
    assert taken == [1, 2, 3, 4, 5, 6]
    assert [*first, *second, *training] == []


def test_what_is_spent_grows_to_at_most_the_target() -> None:
    training = start()
    spent = [training.spent, *(training.spent for _ in training)]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert 3 - 1e-3 < spent[-1] <= 3
    assert training.statement.epsilon == spent[-1]


def test_who_stops_early_still_claims_the_whole_budget() -> None:
    training = start()
    next(iter(training))
    assert training.spent < 3
    epsilon = training.statement.epsilon
    assert epsilon is not None
    assert epsilon > 3 - 1e-3


def test_the_statement_says_where_randomness_came_from_and_what_is_assumed() -> None:
    secure, seeded = start().statement, start(seed=1).statement
    assert (secure.randomness, seeded.randomness) == ("secure", "seeded")
    assert (secure.claim, secure.adjacency) == ("guarantee", "add-remove")
    text = str(seeded)
    for line in ("claim: guarantee", "delta: 1e-05", "accountant: pld", "noise: independent"):
        assert line in text.splitlines()
    assert "seed is for experiments" in text
    assert "seed" not in str(secure)
    assert start(sampler="shuffled").statement.claim == "nominal"


def test_a_method_that_protects_nothing_claims_nothing() -> None:
    left_out = dict.fromkeys(("epsilon", "delta", "clip_norm"))
    for changes in ({"method": "sgd", **left_out}, {"method": "dp-adam-noiseless"}):
        training = start(**changes)
        assert training.statement.claim == "non-private"
        assert training.spent == math.inf
        assert "assumes" not in str(training.statement)


def test_without_a_seed_no_two_trainings_share_noise_and_with_one_they_do() -> None:
    def reached(seed: int | None) -> Tensor:
        model = network()
        return parameters(start(model, seed=seed), model)

    assert not torch.equal(reached(None), reached(None))
    assert torch.equal(reached(5), reached(5))
    assert not torch.equal(reached(5), reached(6))


def test_the_random_streams_of_the_caller_stay_as_they_are() -> None:
    data, model = Jittered(), network(nn.Dropout(0.5))
    torch.manual_seed(3)

    def positions() -> list[str]:
        states = torch.get_rng_state().tolist(), np.random.get_state(), random.getstate()
        return [str(state) for state in states]

    with np.printoptions(threshold=1000):
        before = positions()
        list(start(model, data, seed=1))
        assert positions() == before


# Save and resume


class Jittered(Dataset[tuple[Tensor, int]]):
    """Examples whose inputs are augmented by draws from the global streams."""

    def __len__(self) -> int:
        return len(DATA[0])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(6) + random.gauss(0, 1) + np.random.randn()
        return DATA[0][index] + 0.1 * noise.float(), int(DATA[1][index])


RESUMED: list[dict[str, Any]] = [
    {"method": "dp-adambc"},
    {"method": "dp-pmlf", "history": 2, "noise": {"kind": "banded", "bands": 2}},
    {"sampler": "shuffled"},
    {"microbatch_size": 4},
    {"method": "dp-sgd-warm", "public": (INPUTS[:50], DATA[1][:50])},
]


@pytest.mark.long
@pytest.mark.parametrize("changes", RESUMED, ids=lambda changes: str(next(iter(changes.values()))))
def test_a_resumed_training_ends_bit_for_bit_like_one_that_never_stopped(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    if "noise" in changes:
        changes = {**changes, "sampler": "cyclic-poisson"}
    middle, path = nn.Dropout(0.2), tmp_path / "saved"
    whole, half, rest = (network(middle) for _ in range(3))
    goal = parameters(start(whole, Jittered(), seed=1, **changes), whole)
    stopped = start(half, Jittered(), seed=1, **changes)
    at_stop = parameters(stopped, half, steps=3)
    stopped.save(path)
    resumed = start(rest, Jittered(), seed=1, **changes)
    resumed.resume(path)
    assert resumed.step == 3
    assert resumed.spent == stopped.spent
    assert torch.equal(nn.utils.parameters_to_vector(rest.parameters()), at_stop)
    assert torch.equal(parameters(resumed, rest), goal)


def test_a_training_with_secret_noise_goes_on_with_fresh_noise(tmp_path: Path) -> None:
    model, other = network(), network()
    stopped = start(model)
    at_stop = parameters(stopped, model, steps=3)
    stopped.save(tmp_path / "saved")
    resumed = start(other)
    resumed.resume(tmp_path / "saved")
    assert torch.equal(nn.utils.parameters_to_vector(other.parameters()), at_stop)
    assert list(resumed) == [4, 5, 6]
    assert list(stopped) == [4, 5, 6]
    ends = [nn.utils.parameters_to_vector(one.parameters()) for one in (model, other)]
    assert not torch.equal(*ends)


def test_secrets_are_never_saved(tmp_path: Path) -> None:
    banded = {"noise": {"kind": "banded", "bands": 2}, "sampler": "cyclic-poisson"}
    for changes in (banded, {"sampler": "shuffled"}):
        with pytest.raises(UserError, match="who reads them can undo the noise"):
            start(**changes).save(tmp_path / "saved")
    start().save(tmp_path / "saved")
    from safetensors.torch import load_file

    assert {name.partition("/")[0] for name in load_file(tmp_path / "saved")} <= {
        "physical", "state",
    }  # fmt: skip


@pytest.mark.long
def test_what_another_training_saved_is_refused(tmp_path: Path) -> None:
    start(seed=1).save(tmp_path / "saved")
    for changes, named in (
        ({"seed": 2}, "its seed is 1, this run's is 2"),
        ({"seed": 1, "learning_rate": 0.2}, "its method is"),
        ({"seed": 1, "epsilon": 8}, "its budget is"),
        ({}, "its budget is"),
    ):
        with pytest.raises(UserError, match=named):
            start(**changes).resume(tmp_path / "saved")
    with pytest.raises(UserError, match="its model is"):
        start(network(nn.Linear(4, 4)), seed=1).resume(tmp_path / "saved")
    (tmp_path / "saved").write_bytes(b"x")
    with pytest.raises(UserError, match="it is damaged"):
        start(seed=1).resume(tmp_path / "saved")
    training = start(seed=1)
    next(iter(training))
    with pytest.raises(UserError, match="resume: 1 steps were already taken"):
        training.resume(tmp_path / "saved")


# The model in the loop


def test_the_model_has_the_last_parameters_and_trains_on_in_training_mode() -> None:
    model, same = network(nn.Dropout(0.5)), network(nn.Dropout(0.5))
    training = start(model, seed=1)
    for _ in training:
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert torch.equal(flat, training._trainer.state.theta)
        model.eval()
        model(INPUTS).sum().backward()  # measuring it changes nothing
        with torch.no_grad():
            next(model.parameters()).zero_()  # nor does writing into it
    assert torch.equal(flat, parameters(start(same, seed=1), same))


def test_a_model_that_was_moved_is_noticed() -> None:
    model = network()
    training = start(model)
    for _ in training:
        model.double()
        break
    with pytest.raises(UserError, match="model: it was moved, or its parameters were replaced"):
        next(iter(training))


@pytest.mark.long
def test_physical_batches_shrink_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = FactoredEngine.clipped_sum

    def hungry(engine: FactoredEngine, inputs: Tensor, *arguments: Any) -> Tensor:
        if len(inputs) > 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return sums(engine, inputs, *arguments)

    ends, sizes = [], []
    for way in (sums, hungry):
        monkeypatch.setattr(FactoredEngine, "clipped_sum", way)
        model = network()
        training = start(model, seed=1)
        ends.append(parameters(training, model))
        sizes.append(training.physical_batch_size)
    assert torch.allclose(*ends)
    assert sizes == [256, 8]


def test_a_torch_dataset_and_its_tensors_train_alike() -> None:
    class Pairs(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(DATA[0])

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return DATA[0][index], int(DATA[1][index])

    ends = []
    arrays = tuple(tensor.numpy() for tensor in DATA)
    for data in (DATA, TensorDataset(*DATA), arrays, Pairs()):
        model = network()
        ends.append(parameters(start(model, data, seed=1), model))
    assert all(torch.equal(end, ends[0]) for end in ends)


# What cannot be private


def test_a_loss_of_probabilities_is_tried_out_on_probabilities() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy(outputs[:, 0], targets.float(), reduction="none")

    assert len(list(start(network(nn.Linear(4, 4)).append(nn.Sigmoid()), loss=loss))) == 6


class Doubled(nn.Module):
    """A large parameter without a rule of its own: it enters by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2**15, 4), 2.0**-15))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.cumsum(0)[-1]


def test_a_layer_without_a_rule_is_trained_by_the_slower_engine_which_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert start().engine == "factored: every layer has a rule"
    assert not caplog.text
    training = start(network(Doubled()))
    assert training.engine.startswith("vmap: factored cannot: ")
    assert f"a slower gradient engine is used: {training.engine}" in caplog.text


class Keeps(nn.Module):
    """A layer that keeps what it has seen outside of its buffers."""

    last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().mean()
        return x + before


class Centred(nn.Module):
    """A layer that shares a statistic between examples."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Opaque(nn.Module):
    """A layer whose gradient is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + (0 * self.weight).sqrt()


class Whole(IterableDataset[tuple[Tensor, int]]):
    """Examples that can only be read in order."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(INPUTS[0], 0)])


def of_first(outputs: Tensor, targets: Tensor) -> Tensor:
    losses: Tensor = LOSS(outputs - outputs.mean(dim=0), targets)
    return losses


def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    losses: Tensor = LOSS(outputs, targets)
    return losses * len(targets) / torch.bincount(targets, minlength=2)[targets]


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (network(nn.BatchNorm1d(4)), {}, "model: 2 is a BatchNorm1d: its statistics mix"),
        (network(Centred()), {}, "model: 2 mixes examples"),
        (network(Keeps()), {}, "model: 2.last changes with the examples"),
        (network(Opaque()), {}, "model: no engine can compute its per-example gradients"),
        (network().half(), {}, "model: fails on inputs|model: torch.float16 parameters"),
        (network(nn.LSTM(4, 4)), {}, "model: fails on inputs of shape"),
        (nn.LSTM(6, 4), {}, "model: must return one tensor, .*got tuple"),
        (None, {"loss": nn.CrossEntropyLoss()}, r"loss: must return .* reduction='none'"),
        (None, {"loss": of_first}, "loss: mixes examples"),
        (None, {"loss": balanced}, "loss: mixes examples"),
        (None, {"loss": nn.BCELoss(reduction="none")}, "loss: fails on outputs of shape"),
        (None, {"data": DataLoader(TensorDataset(*DATA))}, "data: give the DataLoader's dataset"),
        (None, {"data": Whole()}, "data: expected a pair of tensors"),
        (None, {"data": INPUTS}, "data: an item must be"),
        (None, {"data": (INPUTS, DATA[1][:-1])}, "data: expected inputs and as many targets"),
        (None, {"data": (INPUTS[:0], DATA[1][:0])}, "data: holds no examples"),
        (None, {"data": [{"x": 1, "y": 0}]}, "data: an item must be .*got dict"),
        (None, {"method": "dp-fedavg"}, "method: dp-fedavg protects users"),
        (None, {"method": "dp-adamb"}, "unknown method 'dp-adamb'. Did you mean 'dp-adambc'"),
        (None, {"method": "dp-sgd-warm"}, "public: dp-sgd-warm needs public examples"),
        (None, {"public": DATA}, "public: dp-adam uses no public examples"),
        (
            None,
            {"method": "adadps-side"},
            "^side_information.source: tokens are counted in public text, and for these examples",
        ),
        (None, {"learning_rat": 3, "learning_rate": None}, "Did you mean 'learning_rate'"),
        (None, {"epsilom": 3}, "unknown setting 'epsilom'. Did you mean 'epsilon'"),
        (None, {"learning_rate": -1}, "^learning_rate: input should be greater than 0, got -1"),
        (None, {"learning_rate": None}, "^learning_rate: required, but not given"),
        (None, {"expected_batch_size": 500}, "^expected_batch_size: 500 is more than the 200"),
        (None, {"noise_multiplier": 1}, "give exactly one of epsilon and noise_multiplier"),
        (None, {"steps": None}, "give exactly one of epochs and steps"),
        (None, {"sampler": "random"}, "sampler: input should be 'poisson'"),
        (None, {"seed": 1.5}, "seed: input should be a whole number"),
        (None, {"device": "gpu"}, "device: 'gpu' cannot be used"),
        (None, {"secure_noise": False}, "unknown setting 'secure_noise'"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_cannot_be_private_is_refused_before_anything_trains(
    model: nn.Module | None, changes: dict[str, Any], message: str
) -> None:
    changes = dict(changes)
    with pytest.raises(UserError, match=message):
        start(copy.deepcopy(model), changes.pop("data", DATA), **changes)


# Schedules, and what may change between steps


COSINE = {"kind": "cosine", "peak": 0.1, "warmup": 0.5, "final": 0.01}


def test_a_schedule_trains_as_its_numbers_set_before_each_step_do() -> None:
    model, by_hand = network(), network()
    schedule = CosineSchedule(peak=0.1, warmup=0.5, final=0.01)
    reached = parameters(start(model, learning_rate=COSINE, seed=1), model)
    training = start(by_hand, seed=1)
    steps = iter(training)
    for t in range(1, len(training) + 1):
        training.set(learning_rate=schedule.at(t, len(training)))
        assert next(steps) == t
    assert torch.equal(torch.cat([p.detach().flatten() for p in by_hand.parameters()]), reached)


def test_noise_for_a_schedule_stays_what_it_is_if_another_rate_is_set() -> None:
    noise = {"kind": "dense", "rates": "learning_rate"}
    training = start(learning_rate=COSINE, sampler="cyclic", noise=noise, seed=1)
    before = training.statement
    for _ in training:
        training.set(learning_rate=0.1)
    assert training.statement == before


def test_what_was_set_is_part_of_a_saved_training(tmp_path: Path) -> None:
    whole, half, rest = network(), network(), network()
    for model, stop in ((whole, None), (half, 3)):
        training = start(model, seed=1)
        for step in training:
            if step == 2:
                training.set(learning_rate=COSINE)
            if step == stop:
                training.save(tmp_path / "saved")
                break
    resumed = start(rest, seed=1)
    resumed.resume(tmp_path / "saved")
    expected = torch.cat([p.detach().flatten() for p in whole.parameters()])
    assert torch.equal(parameters(resumed, rest), expected)


def test_what_is_set_changes_no_epsilon() -> None:
    training = start()
    before = training.statement
    for step in training:
        training.set(learning_rate=0.01 * step)
    assert training.statement == before
    assert training.spent == before.epsilon


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"clip_norm": 2.0}, "clip_norm.* learning_rate"),
        ({"learning_rat": 2.0}, "Did you mean 'learning_rate'"),
        ({"learning_rate": 0}, "^learning_rate: input should be greater than 0, got 0"),
        ({"learning_rate": {"kind": "cosin", "peak": 1}}, "Did you mean 'cosine'"),
    ],
)
def test_what_cannot_change_during_training_is_named(numbers: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        start().set(**numbers)


def test_an_assignment_that_would_have_no_effect_is_refused() -> None:
    training = start()
    with pytest.raises(UserError, match=r"no effect; use training\.set\(learning_rate=…\)"):
        training.learning_rate = 0.0  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="no effect; prepare another"):
        training.steps = 3  # type: ignore[misc]


def frozen(model: nn.Sequential) -> None:
    model[0].weight.requires_grad_(False)


def with_a_layer(model: nn.Sequential) -> None:
    model.append(nn.ReLU())


def without_a_layer(model: nn.Sequential) -> None:
    del model[1]


def with_another_layer(model: nn.Sequential) -> None:
    model[1] = nn.ReLU()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (frozen, r"'0\.weight' was frozen between steps, which has no effect"),
        (with_a_layer, "the layer '3' was added, removed or replaced"),
        (without_a_layer, "the layer '1' was added, removed or replaced"),
        (with_another_layer, "the layer '1' was added, removed or replaced"),
    ],
)
def test_a_network_that_changes_between_steps_is_refused(change: Any, message: str) -> None:
    model = network()
    steps = iter(start(model))
    next(steps)
    change(model)
    with pytest.raises(UserError, match=message):
        next(steps)


# How it describes itself


def test_its_length_is_the_number_of_steps() -> None:
    training = start()
    assert len(training) == len(list(training)) == 6


def test_it_says_what_it_is() -> None:
    training = start(seed=1)
    next(iter(training))
    assert repr(training).startswith("<PrivateTraining: dp-adam, step 1 of 6, ε = 3 at δ = 1e-05")
    assert repr(training).endswith("add-remove, guarantee>")
    plain = start(method="sgd", epsilon=None, delta=None, clip_norm=None)
    assert repr(plain) == "<PrivateTraining: sgd, step 0 of 6, non-private>"


@pytest.mark.parametrize(
    "changes", [{}, {"sampler": "cyclic", "noise": {"kind": "blt", "buffers": 2}}]
)
def test_the_statement_is_plain_data_and_json(changes: dict[str, Any]) -> None:
    statement = start(**changes).statement
    plain = statement.to_dict()
    assert json.loads(statement.to_json()) == plain
    assert plain["epsilon"] == statement.epsilon
    assert plain["assumes"] == list(statement.assumes)
    assert {*plain, "epsilon_with_tuning"} == {field.name for field in fields(statement)}


@pytest.mark.parametrize(
    ("changes", "remarks"),
    [
        ({}, []),
        pytest.param(
            {"delta": None}, ["δ = 0.005 = 1/n (n = 200 examples)"], marks=pytest.mark.long
        ),
        pytest.param({"delta": 0.5}, ["δ = 0.5 is above 1/n"], marks=pytest.mark.long),
        ({"epsilon": 50}, ["ε = 50"]),
        (
            {"epsilon": None, "noise_multiplier": 0.01, "accountant": "rdp"},
            ["above 10 the guarantee is weak"],
        ),
        ({"method": "sgd", "epsilon": None, "delta": None, "clip_norm": None}, []),
    ],
)
def test_a_budget_that_protects_little_is_remarked_on(
    changes: dict[str, Any], remarks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    start(**changes)
    said = [record.getMessage() for record in caplog.records if record.name == private.__name__]
    assert len(said) == len(remarks)
    assert all(remark in message for remark, message in zip(remarks, said, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_numbers_are_refused(value: float) -> None:
    inputs = INPUTS.clone()
    inputs[[3, 7], 2] = value
    message = "^data: inputs are nan or infinite in 2 of 200 rows, first in row 3"
    for data in ((inputs, DATA[1]), TensorDataset(inputs, DATA[1])):
        with pytest.raises(UserError, match=message):
            start(data=data)
    items = list(zip(inputs, DATA[1], strict=True))  # of a dataset, the first eight
    with pytest.raises(UserError, match=r"^data: inputs are nan or infinite in 2 of 8 rows"):
        start(data=items)
    with pytest.raises(UserError, match=r"^data: targets are nan .* in 2 of 200"):
        start(data=(INPUTS, inputs[:, 2]))


class SkipsAtRandom(nn.Module):
    """A layer that is left out at random, as LayerDrop does, by another stream than torch's."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and self.draw() < 1e-6 else self.layer(x)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_a_network_that_draws_from_python_or_numpy_ends_the_training(
    draw: Callable[[], float],
) -> None:
    """Its numbers would be shared by the examples that are computed together."""
    training = start(network(SkipsAtRandom(draw)))
    with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
        next(iter(training))


def test_a_loss_that_draws_from_python_ends_the_training() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        random.random()
        return LOSS(outputs, targets)

    with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
        list(start(loss=loss))


def test_a_library_may_draw_as_a_step_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich, which scikit-learn imports when it is first asked for a metric, draws so."""
    (tmp_path / "draws_as_it_is_imported.py").write_text("import random\n\nrandom.random()\n")
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []
    training = start(network(SkipsAtRandom(lambda: len([import_module(name) for name in names]))))
    names.append("draws_as_it_is_imported")
    before = random.getstate()
    assert next(iter(training)) == 1
    assert random.getstate() != before


def test_nothing_of_a_training_that_was_refused_is_published(tmp_path: Path) -> None:
    training = start(network(SkipsAtRandom(random.random)))
    with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
        next(iter(training))
    for again in (
        lambda: training.publish(tmp_path / "model"),
        lambda: training.save(tmp_path / "saved"),
        lambda: next(iter(training)),
    ):
        with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
            again()
    assert not list(tmp_path.iterdir())


class KeepsTheMean(nn.Module):
    """A layer that moves a buffer past PyTorch's notice, and that the engines take one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and float(x.detach().abs().sum()) > 0 and self.moves:
            self.mean.data.add_(x.detach().mean(0) if x.ndim > 1 else x.detach())
        return x

    moves = False


def test_a_training_that_was_ended_early_publishes_no_buffer_that_moved(tmp_path: Path) -> None:
    layer = KeepsTheMean()
    training = start(network(layer))
    next(iter(training))
    KeepsTheMean.moves = True
    try:
        next(iter(training))
    finally:
        KeepsTheMean.moves = False
    with pytest.raises(UserError, match="mean changed while the network was trained"):
        training.publish(tmp_path / "model")
    assert not list(tmp_path.iterdir())


class RandomRareInputs(nn.Module):
    """Inputs above a bound are replaced by random numbers, drawn for all of them together."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0.9, torch.randn(()), x) if bool((x > 0.9).any()) else x


def test_a_network_that_draws_from_torch_for_some_examples_alone_ends_the_training() -> None:
    training = start(network(RandomRareInputs()))
    with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
        list(training)


class Counts:
    """A loss that counts its calls, from some call on."""

    counting = False

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += self.counting
        losses: Tensor = LOSS(outputs, targets)
        return losses


def test_a_loss_that_remembers_is_refused_in_the_step_in_which_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = Counts()
    training = start(loss=loss)
    steps = iter(training)
    assert next(steps) == 1
    monkeypatch.setattr(Counts, "counting", True)
    with pytest.raises(UserError, match=r"loss\.calls changed while the network was trained"):
        next(steps)


def test_what_the_script_notes_in_the_network_after_the_last_step_ends_no_loop() -> None:
    model = network()
    training = start(model)
    for step in training:
        if step == len(training):
            model.note = ["trained"]


class InterruptError(Exception):
    """What Ctrl-C raises wherever the program is."""


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int) -> None:
    """Raise `InterruptError` at the end of a call of a function; calls are counted from 1."""
    original, calls = getattr(owner, name), count(1)

    def interrupted(*words: Any, **more: Any) -> Any:
        found = original(*words, **more)
        if next(calls) == call:
            raise InterruptError
        return found

    monkeypatch.setattr(owner, name, interrupted)


def test_what_a_user_has_trained_is_not_left_in_the_network_by_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network()
    federated = {"method": "dp-fedavg", "learning_rate": 1.0, "local_learning_rate": 1.0}
    training = start(model, users=[place // 5 for place in range(200)], **federated, steps=3)
    interrupt(monkeypatch, GradientEngine, "mean_gradient", 3)
    with pytest.raises(InterruptError):
        next(iter(training))
    released = training._trainer.state.theta
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), released)


@pytest.mark.parametrize(
    ("settings", "goes_on"),
    [
        ({}, True),
        ({"seed": 1}, True),
        ({"sampler": "cyclic", "accountant": "per-epoch"}, False),
        ({"noise": {"kind": "banded", "bands": 2}, "sampler": "cyclic"}, False),
    ],
)
def test_after_an_interruption_a_training_goes_on_only_where_draws_do_not_follow_from_each_other(
    settings: dict[str, Any], goes_on: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    training = start(**settings)
    assert next(iter(training)) == 1
    with monkeypatch.context() as patch:
        interrupt(patch, Trainer, "_public", 1)
        with pytest.raises(InterruptError):
            next(iter(training))
    if goes_on:
        assert list(training) == [2, 3, 4, 5, 6]
        return
    for step in (lambda: next(iter(training)), lambda: training.save(tmp_path / "saved")):
        with pytest.raises(UserError, match="a step was interrupted before it was counted"):
            step()


def test_an_interruption_after_a_step_was_counted_leaves_none_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = start(sampler="cyclic", accountant="per-epoch")
    with monkeypatch.context() as patch:
        interrupt(patch, PrivateUnits, "clipped_sum", 2)
        with pytest.raises(InterruptError):
            list(training)
    assert training.step == 2
    assert list(training) == [3, 4, 5, 6]


def test_autocast_around_the_loop_is_refused_until_it_is_left() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UserError, match="autocast is"):
        start()
    training = start()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UserError, match="autocast is"):
        next(iter(training))
    assert list(training) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("order", ["examples", "users"])
def test_a_saved_training_goes_on_with_the_same_examples_in_the_same_order_alone(
    order: str, tmp_path: Path
) -> None:
    """Who takes part in which step is remembered by position."""
    users = [place // 5 for place in range(200)]
    settings: dict[str, Any] = {"seed": 1, "sampler": "cyclic", "accountant": "per-epoch"}
    if order == "users":
        federated = {"method": "dp-fedavg", "learning_rate": 1.0, "local_learning_rate": 1.0}
        settings |= {**federated, "users": users, "expected_batch_size": 10}
    training = start(**settings)
    next(iter(training))
    training.save(tmp_path / "saved")
    start(**settings).resume(tmp_path / "saved")
    if order == "users":
        other = start(**settings | {"users": users[::-1]})
    else:
        other = start(data=(DATA[0].flip(0), DATA[1].flip(0)), **settings)
    with pytest.raises(UserError, match="data" if order == "examples" else "users"):
        other.resume(tmp_path / "saved")


def test_a_saved_training_with_secret_noise_says_nothing_of_its_examples(tmp_path: Path) -> None:
    training = start()
    next(iter(training))
    training.save(tmp_path / "saved")
    assert digest_of(training._material.examples).encode() not in (tmp_path / "saved").read_bytes()


def test_a_loop_may_draw_from_python_and_numpy_between_steps() -> None:
    for _ in start():
        random.random()
        np.random.rand()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"x": INPUTS, "y": DATA[1]}, "data: expected a pair of tensors .*, got dict"),
        (pd.DataFrame({"x": [1.0, 2.0]}), "data: expected a pair of tensors .*, got DataFrame"),
        ([(object(), 1), (object(), 0)], "data: inputs of type object make no batch"),
        ([(torch.zeros(6), None)] * 2, "data: targets of type NoneType make no batch"),
        (
            [(torch.zeros(6), torch.zeros(1 + i)) for i in range(2)],
            r"data: targets differ in their shapes \(\(1,\), \(2,\)\)",
        ),
    ],
    ids=["dict", "frame", "object", "no target", "targets"],
)
def test_data_that_make_no_batch_are_refused_in_a_line(data: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        start(data=data)


def test_ids_of_users_may_be_numbers_of_numpy_or_torch() -> None:
    ids = [number // 10 for number in range(200)]
    for form in (np.int64, torch.tensor):
        assert torch.equal(users_of([form(one) for one in ids], 200), users_of(ids, 200))


def test_a_saved_training_goes_on_with_the_same_layers_alone(tmp_path: Path) -> None:
    """A frozen layer, or one without parameters, is part of the model."""

    def built(middle: nn.Module, seed: int) -> nn.Module:
        model = network(middle)
        torch.manual_seed(seed)
        frozen = nn.Linear(6, 6).requires_grad_(False)
        return nn.Sequential(frozen, *model)

    saved = start(built(nn.Tanh(), 1))
    next(iter(saved))
    saved.save(tmp_path / "saved")
    start(built(nn.Tanh(), 1)).resume(tmp_path / "saved")
    for model in (built(nn.Tanh(), 2), built(nn.ReLU(), 1)):
        with pytest.raises(UserError, match="layers"):
            start(model).resume(tmp_path / "saved")


class Jitter(nn.Module):
    """A transform that is a module, as those of torchvision are."""

    def forward(self, x: Tensor) -> Tensor:
        return x + random.gauss(0, 0.1)


class JitteredByAModule(Dataset[Any]):
    transform = Jitter()

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(INPUTS[index]), DATA[1][index]


def test_a_dataset_may_draw_in_transforms_that_are_modules() -> None:
    assert next(iter(start(data=JitteredByAModule()))) == 1


class OwnGenerator(Dataset[Any]):
    """Items that are turned at random, by a generator of the dataset's own."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return INPUTS[place] * float(self.draws.normal()), DATA[1][place]


def test_a_dataset_whose_items_depend_on_those_fetched_before_is_refused() -> None:
    with pytest.raises(UserError, match="data: an item is another one when it is fetched again"):
        start(data=OwnGenerator())


class DrawsForSome(OwnGenerator):
    """Only the last items are turned."""

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        plain = INPUTS[place], DATA[1][place]
        return super().__getitem__(place) if place >= 150 else plain


def test_a_dataset_that_draws_for_the_last_items_alone_is_refused() -> None:
    with pytest.raises(UserError, match="data: an item is another one when it is fetched again"):
        start(data=DrawsForSome())


def test_a_training_without_privacy_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    free: dict[str, Any] = dict.fromkeys(("clip_norm", "epsilon", "delta"))
    whole, saved = network(), network()
    expected = parameters(start(whole, method="sgd", seed=1, **free), whole)
    first = start(saved, method="sgd", seed=1, **free)
    parameters(first, saved, steps=2)
    first.save(tmp_path / "saved")
    later = network()
    second = start(later, method="sgd", seed=1, **free)
    second.resume(tmp_path / "saved")
    assert second.step == 2
    torch.testing.assert_close(parameters(second, later), expected, rtol=0, atol=0)
    second.set(learning_rate=0.01)
