"""In one's own loop, users are protected as a study protects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clipnoise
from clipnoise.errors import UserError
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.private import PrivateTraining
from clipnoise.run.setup import build_network
from clipnoise.run.spec import from_mapping
from clipnoise.run.train import Run

LOSS = nn.CrossEntropyLoss(reduction="none")
DRAWS = torch.Generator().manual_seed(0)
N, USERS = 60, 20
INPUTS, TARGETS = torch.randn(N, 5, generator=DRAWS), torch.randint(2, (N,), generator=DRAWS)
OWNERS = torch.arange(N) % USERS
SETTINGS: dict[str, Any] = {
    "method": "dp-fedavg",
    "learning_rate": 1.0,
    "clip_norm": 0.5,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "steps": 4,
    "expected_batch_size": 5,
    "seed": 3,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 2)


def start(model: nn.Module | None = None, **changes: Any) -> PrivateTraining:
    given = {"data": (INPUTS, TARGETS), "users": OWNERS, **SETTINGS, **changes}
    return clipnoise.private(model or network(), LOSS, given.pop("data"), **given)


def trained(**changes: Any) -> torch.Tensor:
    model = network()
    for _ in start(model, **changes):
        pass
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.long  # test_private.py has the same of examples
def test_parameters_are_bit_for_bit_those_of_a_run_on_a_dataset_with_users(tmp_path: Path) -> None:
    spec = from_mapping(
        {
            "dataset": {"id": "digits-users", "users": 50},
            "model": "logistic",
            "method": {"id": "dp-fedavg", "learning_rate": 1.0, "clip_norm": 0.5},
            "privacy": {"epsilon": 8.0, "delta": 1e-3},
            "training": {"expected_batch_size": 10, "steps": 5},
            "seed": 2,
        }
    )
    spec.dataset.prepare(tmp_path)
    assert spec.budget is not None
    calibration = calibrate(spec.budget)
    run = Run.prepare(spec, tmp_path, "cpu", noise_multiplier=calibration.noise_multiplier)
    for batch in run.batches():
        run.step(batch)
    splits, own = spec.dataset.load(tmp_path), build_network(spec)
    assert splits.users is not None
    training = clipnoise.private(
        own,
        spec.dataset.signature.task.losses,
        splits.train.take(slice(None)),
        users=[f"u{user:02}" for user in splits.users.tolist()],
        method=spec.method,
        epsilon=8.0,
        delta=1e-3,
        steps=5,
        expected_batch_size=10,
        seed=2,
    )
    for _ in training:
        pass
    reached = nn.utils.parameters_to_vector(own.parameters())
    assert torch.equal(reached, run.state.theta)
    assert training.statement.epsilon == calibration.epsilon


def test_the_statement_counts_and_protects_users() -> None:
    statement = start(epochs=2, steps=None).statement
    assert (statement.unit, statement.adjacency) == ("user", "add-remove-user")
    assert statement.claim == "guarantee"
    assert statement.sampling_rate == pytest.approx(5 / USERS)
    assert statement.steps == 2 * USERS // 5
    assert "its user" in " ".join(statement.assumes)


def test_without_a_delta_it_is_one_by_the_number_of_users() -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "delta"}
    training = clipnoise.private(network(), LOSS, (INPUTS, TARGETS), users=OWNERS, **settings)
    assert training.statement.delta == pytest.approx(1 / USERS)


@pytest.mark.parametrize(
    "ids",
    [
        OWNERS.tolist(),
        OWNERS.numpy(),
        [f"{number:02}" for number in OWNERS.tolist()],
        np.array([f"{number:02}" for number in OWNERS.tolist()]),
    ],
    ids=["list", "array", "texts", "array of texts"],
)
def test_ids_may_be_numbers_or_texts_in_any_sequence(ids: Any) -> None:
    if isinstance(ids[0], str):  # numbers are ordered as texts
        assert torch.equal(trained(users=ids), trained(users=OWNERS + 100))
    else:
        assert torch.equal(trained(users=ids), trained(users=OWNERS))


def test_what_a_user_adds_is_bounded_however_many_examples_there_are() -> None:
    """Almost without noise, other data of one user move the parameters by at most 2C/B."""
    wild = INPUTS.clone()
    wild[OWNERS == 0] = 1e4
    steps = {"steps": 1, "noise_multiplier": 1e-9, "expected_batch_size": USERS}
    distance = (trained(**steps) - trained(data=(wild, TARGETS), **steps)).norm()
    assert 0 < float(distance) <= 2 * SETTINGS["clip_norm"] / USERS * 1.001


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": OWNERS[:-1]}, "users: 59 ids for 60 examples"),
        ({"users": None}, "method: dp-fedavg protects users.*give users"),
        ({"users": [None, *OWNERS.tolist()[1:]]}, "users: a missing id in row 0"),
        ({"users": ["a", "", *["b"] * 58]}, "users: a missing id in row 1"),
        ({"users": np.full(N, np.nan)}, "users: a missing id in row 0"),
        ({"users": np.full(N, 0.5)}, "users: 0.5 in row 0"),
        ({"users": [*OWNERS.tolist()[1:], [1, 2]]}, "users: several ids in row 59"),
        ({"users": torch.stack([OWNERS, OWNERS], dim=1)}, "users: several ids in row 0"),
        ({"method": "dp-sgd"}, "users: dp-sgd protects one example.*leave users out"),
        ({"expected_batch_size": 21}, "expected_batch_size: 21 is more than the 20 private users"),
        ({"views": 2}, "views: must be 1 for dp-fedavg"),
    ],
)
def test_users_that_cannot_be_protected_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        start(**changes)


def test_a_training_with_users_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, model = trained(), network()
    training = start(model)
    next(iter(training))
    training.save(tmp_path / "saved")
    other = network()
    training = start(other)
    training.resume(tmp_path / "saved")
    for _ in training:
        pass
    assert torch.equal(nn.utils.parameters_to_vector(other.parameters()), whole)
