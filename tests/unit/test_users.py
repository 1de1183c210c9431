"""Users: the assignment of examples, local training, and the clipping of a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build as build_method
from gradient_networks import build, losses
from gradient_networks import examples as draw_examples
from real_files import small, write_raw
from torch import Tensor, nn

from clipnoise.audit.subject import SummedBy
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import LocalTraining, Method
from clipnoise.data.base import Dataset, Examples, dataset_class
from clipnoise.data.digits import DigitsUsers
from clipnoise.data.stackoverflow import StackOverflow
from clipnoise.errors import UserError
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.gradients.users import UserEngine
from clipnoise.methods.base import example
from clipnoise.methods.federated import DPFedAvg
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.models.dense import Logistic
from clipnoise.plugins import plugins
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.queries import ClippedMean, ClippedUserMean
from clipnoise.run.own import OwnProcedure
from clipnoise.run.procedure import Training
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run

NAME = "shared layer"
PUBLIC_GRADIENTS = {"source": "public-gradients"}
OWNERS = torch.tensor([2, 0, 1, 0, 2, 2, 2, 0, 4, 2])  # user 3 has nothing


def engine(
    *, scale: Tensor | None = None, **options: Any
) -> tuple[UserEngine, VmapEngine, Examples]:
    plain, data = VmapEngine(build(NAME), losses), Examples(*draw_examples(NAME, len(OWNERS)))
    local = LocalTraining(**{"learning_rate": 0.3, "epochs": 1, "batch_size": 100, **options})
    return UserEngine(plain, data, OWNERS, 5, local, scale), plain, data


def own(data: Examples, user: int) -> tuple[Tensor, Tensor]:
    return data.inputs[user == OWNERS], data.targets[user == OWNERS]


# What a user does.


@pytest.mark.parametrize("user", [0, 1, 2, 4])
def test_one_pass_over_all_examples_at_once_is_one_gradient_step(user: int) -> None:
    users, plain, data = engine()
    theta = plain.flat.theta.clone()
    expected = -0.3 * plain.mean_gradient(*own(data, user), theta)
    torch.testing.assert_close(users.update_of(user, theta), expected)


@pytest.mark.parametrize("scaled", [False, True])
def test_local_training_follows_algorithm_3(scaled: bool) -> None:
    """Lines 3 to 7 by hand: mini-batches of 2 of the user's 5 examples, three times over."""
    d = VmapEngine(build(NAME), losses).flat.theta.numel()
    a = torch.linspace(0.5, 2.0, d)
    users, plain, data = engine(epochs=3, batch_size=2, scale=1 / a if scaled else None)
    theta = plain.flat.theta.clone()
    inputs, targets = own(data, 2)
    w = theta.clone()
    for _ in range(3):
        for first in (0, 2, 4):
            g = plain.mean_gradient(inputs[first : first + 2], targets[first : first + 2], w)
            w = w - 0.3 * (g / a if scaled else g)
    torch.testing.assert_close(users.update_of(2, theta), w - theta)


def test_the_passes_that_are_counted_are_those_of_local_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users, plain, data = engine(epochs=3, batch_size=2)
    taken: list[int] = []
    real = plain.mean_gradient

    def counted(inputs: Tensor, targets: Tensor, theta: Tensor, masks: Masks) -> Tensor:
        taken.append(len(inputs))
        return real(inputs, targets, theta, masks)

    monkeypatch.setattr(plain, "mean_gradient", counted)
    users.update_of(2, plain.flat.theta.clone())
    assert sum(taken) == build_method("fedavg", local_epochs=3).passes() * len(own(data, 2)[0])


def test_an_update_depends_only_on_that_users_examples() -> None:
    users, plain, data = engine(epochs=2, batch_size=2)
    theta = plain.flat.theta.clone()
    before = users.update_of(2, theta)
    data.inputs[OWNERS != 2] += 5
    assert torch.equal(users.update_of(2, theta), before)
    data.inputs[OWNERS == 2] += 5
    assert not torch.equal(users.update_of(2, theta), before)


def test_a_user_without_examples_changes_nothing() -> None:
    users, plain, _ = engine()
    assert not users.update_of(3, plain.flat.theta.clone()).any()
    assert users.examples_of(torch.tensor([2, 3])) == 5


def test_local_training_leaves_the_global_parameters_alone() -> None:
    users, plain, _ = engine(epochs=2)
    theta = plain.flat.theta.clone()
    kept = theta.clone()
    users.update_of(2, theta)
    assert torch.equal(theta, kept)


class Views(Examples):
    """Examples of which each key shows another view."""

    def seen(self, indices: Tensor, key: int) -> tuple[Any, Tensor]:
        inputs, targets = self.take(indices)
        return (1 + key) * inputs, targets


def test_the_key_of_a_step_decides_the_views_and_dropout_masks_of_a_user_s_examples() -> None:
    inputs, targets = draw_examples(NAME, len(OWNERS))
    plain = VmapEngine(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), losses)
    local = LocalTraining(learning_rate=0.3, epochs=1, batch_size=100)
    users = UserEngine(plain, Views(inputs, targets), OWNERS, 5, local)
    theta, rows = plain.flat.theta.clone(), (OWNERS == 2).nonzero().squeeze(1)
    for key in (0, 2):
        masks = Masks(key, torch.tensor([2]))
        (found,) = users.per_example_gradients(masks.examples, masks.examples, theta, masks)
        seen = (1 + key) * inputs[rows]
        expected = -0.3 * plain.mean_gradient(seen, targets[rows], theta, Masks(key, rows))
        torch.testing.assert_close(found, expected)
        summed = users.summed_gradient(masks.examples, masks.examples, theta, masks)
        assert torch.equal(summed, found)


# What a round clips.


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_round_clips_each_users_update_and_adds_them_up(size: int) -> None:
    users, plain, _ = engine(learning_rate=5.0)
    theta, batch = plain.flat.theta.clone(), torch.tensor([0, 2, 4])
    updates = [users.update_of(user, theta) for user in batch.tolist()]
    expected = sum(v * min(1.0, 0.1 / float(v.norm())) for v in updates)
    total = PrivateUnits(users, users.units, PhysicalBatch(size)).clipped_sum(
        batch, Clipping(0.1).at(theta)
    )
    torch.testing.assert_close(total, expected)
    unclipped = PrivateUnits(users, users.units, PhysicalBatch(size)).clipped_sum(
        batch, Clipping(None).at(theta)
    )
    torch.testing.assert_close(unclipped, torch.stack(updates).sum(dim=0))


def test_removing_a_user_with_all_data_moves_the_sum_by_at_most_the_clip_norm() -> None:
    users, plain, _ = engine(learning_rate=50.0, epochs=3, batch_size=1)
    theta, everyone = plain.flat.theta.clone(), torch.arange(5)
    clip_norm, moved = 0.7, []
    total = PrivateUnits(users, users.units, PhysicalBatch(2)).clipped_sum(
        everyone, Clipping(clip_norm).at(theta)
    )
    for user in range(5):
        rest = everyone[everyone != user]
        without = PrivateUnits(users, users.units, PhysicalBatch(2)).clipped_sum(
            rest, Clipping(clip_norm).at(theta)
        )
        moved.append(float((total - without).norm()))
    assert max(moved) == pytest.approx(clip_norm, rel=1e-5)


def test_catches_users_whose_examples_are_clipped_one_by_one() -> None:
    """Example-level clipping lets a user with five examples move the sum by more than C."""
    _, plain, data = engine()
    clipping, theta = Clipping(1e-3), plain.flat.theta.clone()
    moved = plain.clipped_sum(*own(data, 2), clipping.at(theta))
    assert float(moved.norm()) > 1.5 * 1e-3


# Runs.

SPEC: dict[str, Any] = {
    "dataset": {"id": "digits-users", "users": 50, "public_examples": 50},
    "model": "logistic",
    "method": {"id": "dp-fedavg", "learning_rate": 1.0, "clip_norm": 0.5},
    "privacy": {"noise_multiplier": 0.4},
    "training": {"expected_batch_size": 16, "steps": 3, "evaluations": 1},
    "seed": 0,
}


def spec(method: str = "dp-fedavg", **own: Any) -> RunSpec:
    return from_mapping(SPEC | {"method": {**SPEC["method"], "id": method, **own}})


def test_users_share_the_private_examples_and_most_have_two_digits(cache: Path) -> None:
    splits = DigitsUsers(users=50).load(cache)
    assert splits.users is not None
    counts = torch.bincount(splits.users, minlength=50)
    assert len(counts) == 50
    assert int(counts.max() - counts.min()) <= 2
    assert int(counts.sum()) == len(splits.train) == len(splits.users)
    digits = [len(splits.train.targets[splits.users == user].unique()) for user in range(50)]
    assert sum(digits) / 50 < 3


def test_another_split_seed_hands_out_other_shards(cache: Path) -> None:
    one, other = (DigitsUsers(split_seed=seed).load(cache).users for seed in (0, 1))
    assert one is not None
    assert other is not None
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match="users must be at most"):
        DigitsUsers(users=1000)


@pytest.mark.parametrize(("placement", "factor"), [("central", 1.0), ("per-user", 4.0)])
def test_the_accountant_is_given_the_noise_that_is_on_the_sum(
    placement: str, factor: float, cache: Path
) -> None:
    """16 users a round: σ per user is 4σ on the sum, in the account and in what is added."""
    run = spec(noise_placement=placement, momentum=0.0)
    target = run.budget
    assert target is not None
    assert target.noise_multiplier == pytest.approx(factor * 0.4)
    assert target.participation.sampling_rate == pytest.approx(16 / 50)
    assert target.delta == pytest.approx(1 / 50)
    calibration = calibrate(target)
    sigma = calibration.noise_multiplier
    training = Run.prepare(run, cache, "cpu", noise_multiplier=sigma)
    zero = torch.zeros_like(training.state.theta)
    training.units = SummedBy.of(training.units, lambda *_: zero)
    start = training.state.theta.clone()
    for _ in range(3):
        training.step(torch.arange(5))
    on_the_sum = 16 * (training.state.theta - start) / 3**0.5
    expected = factor * 0.4 * 0.5
    assert float(on_the_sum.std()) == pytest.approx(expected, rel=6 / (2 * 650) ** 0.5)
    statement = privacy_statement(run, calibration)
    assert statement.noise_multiplier == pytest.approx(factor * 0.4)
    assert statement.sensitivity == pytest.approx(0.5 / 16)


def test_under_a_target_the_noise_on_the_sum_is_what_is_calibrated() -> None:
    budget = SPEC | {"privacy": {"epsilon": 3.0}}
    targets = [
        from_mapping(budget | {"method": {**SPEC["method"], "noise_placement": placement}}).budget
        for placement in ("central", "per-user")
    ]
    assert targets[0] == targets[1]


def test_the_statement_names_the_user_as_what_is_protected() -> None:
    run = spec("dp-fedadam")
    target = run.budget
    assert target is not None
    statement = privacy_statement(run, calibrate(target))
    assert statement.claim == "guarantee"
    assert statement.unit == "user"
    assert statement.adjacency == "add-remove-user"
    assert statement.examples == 50


def given(method: str) -> dict[str, Any]:
    """Return the source of a method's side information: digits are in no public text."""
    return {"side_information": PUBLIC_GRADIENTS} if method in ("adadps-fed", "adas-fed") else {}


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedadam", "adadps-fed"])
def test_a_step_of_a_run_is_the_mean_of_clipped_updates(method: str, cache: Path) -> None:
    options = {"local_learning_rate": 0.5, "local_batch_size": 4, **given(method)}
    run = Run.prepare(spec(method, **options), cache, "cpu")
    theta, batch = run.state.theta.clone(), torch.tensor([1, 8, 30, 44])
    users = run.engine
    assert isinstance(users, UserEngine)
    updates = [users.update_of(user, theta).double() for user in batch.tolist()]
    mean = sum(v * min(1.0, 0.5 / float(v.norm())) for v in updates) / 16
    run.step(batch)
    assert isinstance(mean, Tensor)
    expected = mean / (mean.abs() + 1e-8) if method == "dp-fedadam" else mean
    torch.testing.assert_close((run.state.theta - theta).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "fedadam", "adas-fed"])
def test_without_privacy_a_step_is_the_mean_update_as_it_is(method: str, cache: Path) -> None:
    own = {"method": {"id": method, "learning_rate": 1.0, **given(method)}, "privacy": None}
    run = Run.prepare(from_mapping(SPEC | own), cache, "cpu")
    theta, batch = run.state.theta.clone(), torch.tensor([1, 8, 30, 44])
    users = run.engine
    assert isinstance(users, UserEngine)
    assert run.procedure.unit.name == "user"
    mean = sum(users.update_of(user, theta) for user in batch.tolist()) / 16
    run.step(batch)
    assert isinstance(mean, Tensor)
    expected = mean / (mean.abs() + 1e-8) if method == "fedadam" else mean
    torch.testing.assert_close(run.state.theta - theta, expected, rtol=1e-3, atol=1e-4)


def test_side_information_divides_the_local_steps(cache: Path) -> None:
    options = {"local_learning_rate": 0.1, "gamma": 0.02, "side_information": PUBLIC_GRADIENTS}
    run = Run.prepare(spec("adadps-fed", **options), cache, "cpu")
    theta, users = run.state.theta.clone(), run.engine
    assert isinstance(users, UserEngine)
    assert run.known.side_information is not None
    assert run.splits.users is not None
    rows = run.splits.users == 7
    engine = VmapEngine(users.network, users.losses)
    gradient = engine.mean_gradient(
        run.splits.train.inputs[rows], run.splits.train.targets[rows], theta
    )
    expected = -0.1 * gradient / (run.known.side_information + 0.02)
    torch.testing.assert_close(users.update_of(7, theta), expected)


class ForExamples(DPFedAvg):
    """Clip users, and account for examples."""

    id = "for-examples"
    query = ClippedMean()  # type: ignore[assignment]


class ForUsers(DPSGD):
    """Clip examples, and account for users."""

    id = "for-users"
    query = ClippedUserMean()


class ForPlacesOfExamples(DPFedAvg):
    """Clip users, and account for an example that leaves its place empty: it changes its user."""

    class InPlace(ClippedUserMean):
        adjacency = "zero-out"

    id = "for-places-of-examples"
    query = InPlace()


@pytest.mark.parametrize(
    ("kind", "clipped"),
    [(ForExamples, "-user'"), (ForPlacesOfExamples, "-user'"), (ForUsers, "add-remove'")],
)
def test_a_query_must_declare_the_adjacency_of_what_is_clipped(
    kind: type[Method], clipped: str
) -> None:
    """Here 20 images of one user are 20 examples, and each of them is clipped by itself."""
    method = example(kind)
    given: dict[str, Any] = {
        "method": method,
        "privacy": Privacy(noise_multiplier=1.0),
        "training": Training(expected_batch_size=16, steps=3),
        "seed": 1,
    }
    wrong = f"method.id: its query declares .* protected under .*{clipped}"
    with pytest.raises(UserError, match=wrong):
        RunSpec(dataset=DigitsUsers(), model=Logistic(), **given)
    with pytest.raises(UserError, match=wrong):
        OwnProcedure(examples=100, users=None if kind is ForUsers else 50, **given)


def test_a_method_on_users_needs_a_dataset_with_users() -> None:
    with pytest.raises(UserError, match=r"have no user ids\. Datasets with users: digits-users"):
        from_mapping(SPEC | {"dataset": "digits"})


def test_more_users_a_round_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="51 is more than the 50 private users"):
        from_mapping(SPEC | {"training": {"expected_batch_size": 51, "steps": 1}})


def test_adadps_without_public_examples_says_what_to_do() -> None:
    method = {**SPEC["method"], "id": "adadps-fed", "side_information": PUBLIC_GRADIENTS}
    with pytest.raises(UserError, match="adadps-fed needs public examples"):
        from_mapping(SPEC | {"dataset": "digits-users", "method": method})


# Whose examples serve other purposes.

PUBLIC_USERS = {"public_users": 4, "train_examples": 235_000, "public_examples": 1000}
SET_APART = {"public_users": 1, "validation_users": 2}


def stackoverflow(method: str = "adadps-fed", **options: Any) -> RunSpec:
    private = method.startswith(("dp", "adadps"))
    return from_mapping(
        {
            "dataset": {"id": "stackoverflow", **options},
            "model": "logistic",
            "method": {
                "id": method,
                "learning_rate": 1.0,
                **({"clip_norm": 1.0} if private else {}),
            },
            "privacy": {"noise_multiplier": 1.0} if private else None,
            "training": {"expected_batch_size": 20, "steps": 4},
            "seed": 0,
        }
    )


def test_public_examples_of_protected_users_are_refused() -> None:
    with pytest.raises(UserError, match=r"dataset\.public_examples: .* Give public_users: 4"):
        stackoverflow(public_examples=1000, validation_examples=0)


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedadam"])
def test_validation_examples_of_protected_users_are_refused(method: str) -> None:
    with pytest.raises(UserError, match=r"validation_examples: .* Give validation_users: 4"):
        stackoverflow(method)


def test_users_whose_examples_serve_nothing_else_are_accepted() -> None:
    assert stackoverflow(**PUBLIC_USERS, validation_examples=0).unit.count == 396
    assert stackoverflow("dp-fedavg", validation_examples=0).unit.count == 400
    tuned = {"validation_users": 4, "train_examples": 235_000}
    assert stackoverflow("dp-fedavg", **tuned).unit.count == 396
    assert stackoverflow(**PUBLIC_USERS, validation_users=6).unit.count == 390
    assert stackoverflow("fedavg", public_examples=10).privacy is None


def test_public_and_validation_users_own_their_examples_and_no_private_one(tmp_path: Path) -> None:
    write_raw(tmp_path, "stackoverflow")
    data = small("stackoverflow", train_examples=30, public_examples=6, **SET_APART)
    assert isinstance(data, StackOverflow)
    data.prepare(tmp_path)
    arrays, _ = data.read(tmp_path)
    owners = torch.from_numpy(arrays["users"].astype("int64"))
    chosen = data._chosen(owners, arrays["test"])
    found = {part: set(owners[chosen[part]].tolist()) for part in ("public", "validation", "train")}
    assert found["public"] == {0}
    assert found["validation"] == {1, 2}
    assert found["train"] <= {3, 4, 5}
    splits = data.load(tmp_path)
    assert splits.users is not None
    assert set(splits.users.tolist()) <= {0, 1, 2}
    assert data.user_unit().count == 3
    assert set(data.user_unit().shared) == {"test"}


@pytest.mark.parametrize("name", plugins("clipnoise.data", Dataset))
def test_every_dataset_with_users_says_which_parts_are_theirs(name: str) -> None:
    """A dataset that reads users from files must say it; these have examples of others."""
    dataset = dataset_class(name)()
    users = dataset.user_unit()
    apart = {"digits-users", "rand-health", "synthetic-sparse"}
    if users is None or name in apart or name.startswith("spamassassin"):
        assert users is None or not users.shared
    else:
        assert set(users.shared) >= {"test", "validation"}
