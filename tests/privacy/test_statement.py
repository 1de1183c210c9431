"""The privacy statement of a run declares a sensitivity that holds in every one of its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from budgets import budget
from every_method import METHODS, build, required
from mechanisms import mechanism

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import selection
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.claim import (
    NEIGHBOURS,
    NOT_COVERED,
    PrivacyStatement,
    covered_by_epsilon,
    state,
    with_search,
)
from clipnoise.privacy.draws import REACH
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.queries import ClippedUserMean
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.privacy.units import User
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec, from_mapping

PRIVATE = [
    name
    for name in METHODS
    if build(name).private and build(name).local_training() is None  # needs a dataset of users
]


def spec(method: dict[str, Any], steps: int = 6) -> RunSpec:
    return from_mapping(
        {
            "dataset": {"id": "synthetic-zipf", "public_examples": 100},
            "model": "lstm",
            "method": method,
            "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
            "training": {"expected_batch_size": 50, "steps": steps},
            "seed": 0,
        }
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_no_step_has_a_larger_sensitivity_than_the_statement_declares(name: str) -> None:
    run = spec({"id": name, **required(name)})
    statement = privacy_statement(run, budget(run))
    clip_norms = [run.method.clip_norm_at(step) for step in range(1, run.steps + 1)]
    known = [norm for norm in clip_norms if norm is not None]
    by_step = [run.method.query.components(norm, 50)[0].sensitivity for norm in known]
    released = len(known) < len(clip_norms)  # releases decide the clip norm: nothing is stated
    assert statement.sensitivity == (None if released else max(by_step))
    assert statement.clip_norm == (None if released else max(known))


@pytest.mark.parametrize(
    ("clip_norms", "steps", "largest"),
    [((1.0, 3.0), 6, 3.0), ((3.0, 1.0), 6, 3.0), ((1.0, 3.0), 2, 1.0)],
)
def test_a_method_with_two_clip_norms_declares_the_largest_that_its_steps_use(
    clip_norms: tuple[float, float], steps: int, largest: float
) -> None:
    options = {"phase_lengths": (2, 2), "learning_rates": (0.1, 0.1), "clip_norms": clip_norms}
    run = spec({"id": "dp2-rmsprop", **options}, steps)
    statement = privacy_statement(run, budget(run))
    assert statement.clip_norm == largest
    assert statement.sensitivity == pytest.approx(largest / 50)


def digits(dataset: dict[str, Any] | None = None, **privacy: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": dataset or {"id": "digits"},
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
            "privacy": {"noise_multiplier": 2.0, **privacy},
            "training": {"expected_batch_size": 100, "steps": 30},
            "seed": 0,
        }
    )


BANDED = {"kind": "banded", "bands": 4}


@pytest.mark.parametrize(
    ("privacy", "claim", "adjacency"),
    [
        ({"sampler": "poisson"}, "guarantee", "add-remove"),
        ({"sampler": "truncated-poisson", "largest_batch": 200}, "guarantee", "add-remove"),
        ({"sampler": "shuffled"}, "nominal", "add-remove"),
        ({"sampler": "shuffled", "accountant": "per-epoch"}, "guarantee", "zero-out"),
        ({"sampler": "cyclic", "accountant": "per-epoch"}, "guarantee", "zero-out"),
        ({"sampler": "cyclic"}, "guarantee", "zero-out"),
        ({"sampler": "cyclic-poisson", "noise": BANDED}, "guarantee", "zero-out"),
        ({"sampler": "cyclic", "noise": {"kind": "blt", "buffers": 2}}, "guarantee", "zero-out"),
        ({"sampler": "fixed-size", "accountant": "rdp-replace"}, "guarantee", "replace"),
    ],
)
def test_the_statement_names_the_adjacency_that_was_proved(
    privacy: dict[str, Any], claim: str, adjacency: str
) -> None:
    run = digits(**privacy)
    calibration = budget(run)
    statement = privacy_statement(run, calibration)
    assert (statement.claim, statement.adjacency) == (claim, adjacency)
    assert calibration is not None
    assert calibration.adjacency == adjacency


def test_the_statement_has_the_numbers_of_its_mechanism_and_of_its_calibration() -> None:
    noise = {"kind": "blt", "buffers": 2}
    run = digits(sampler="cyclic", noise=noise, accountant="rdp", delta=1e-4, secure_noise=True)
    calibration = budget(run)
    assert calibration is not None
    statement = privacy_statement(run, calibration)
    expected = {
        **{"epsilon": calibration.epsilon, "epsilon_target": None, "delta": 1e-4},
        **{"noise_multiplier": 2.0, "accountant": "rdp", "sampler": "cyclic", "unit": "example"},
        **{"sensitivity": 0.01, "microbatch_size": 1, "caveat": None, "clip_norm": 1.0},
        **{"sampling_rate": 100 / 1300, "noise": BufferedNoise(buffers=2), "groups": 13},
        **{"steps": 30, "examples": 1300, "randomness": "secure", "release": "full"},
    }
    assert {name: getattr(statement, name) for name in expected} == expected


def test_a_profile_is_that_of_the_mechanism_where_anything_is_protected() -> None:
    """In a fixed order three releases at σ = 2 are one of the Gaussian mechanism at 2/√3."""
    run = digits(sampler="cyclic")
    calibration = budget(run)
    assert calibration is not None
    profile = privacy_statement(run, calibration).with_profile(calibration).profile
    assert profile is not None
    assert profile.mu == pytest.approx(3**0.5 / 2)
    assert profile.point == (calibration.epsilon, 1 / 1300)
    assert PrivacyStatement(claim="non-private").with_profile(calibration).profile is None


def test_what_a_guarantee_covers_is_covered_with_its_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "selected_epsilon", lambda law, runs, then, delta: 3.25)
    guarantee = PrivacyStatement(
        claim="guarantee", covers="The model.", epsilon=1.0, delta=1e-5, noise_multiplier=2.0,
        sampler="poisson", adjacency="add-remove", sampling_rate=0.1, steps=30,
    )  # fmt: skip
    nominal = replace(guarantee, claim="nominal", covers=None)
    found = [with_search(one, DrawnTrials(mean=6)) for one in (guarantee, nominal)]
    assert [(one.epsilon, one.epsilon_with_tuning) for one in found] == [(1.0, 3.25)] * 2
    words = "The model. With its search, whose number of trials was drawn (negative-binomial of "
    assert f"{found[0].covers}".startswith(f"{words}shape 1, 6 expected), ε is 3.25 for")
    assert found[1].covers is None


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size", "cyclic-poisson"])
def test_noise_that_no_accountant_covers_is_refused_before_training(sampler: str) -> None:
    with pytest.raises(UserError, match="cyclic"):
        digits(sampler=sampler, noise={"kind": "tree"})


def test_a_split_that_depends_on_the_number_of_private_examples_holds_for_zero_out_only() -> None:
    run = digits({"id": "stackoverflow"})
    statement = privacy_statement(run, budget(run))
    assert (statement.claim, statement.adjacency) == ("guarantee", "zero-out")


@pytest.mark.parametrize("sampler", ["cyclic", "cyclic-poisson", "shuffled"])
def test_without_an_example_others_are_in_other_batches_where_zero_out_is_claimed(
    sampler: Any,
) -> None:
    """What makes one step move by 2C and another by C: the last example leaves, one fewer place."""

    def batches(examples: int) -> list[set[int]]:
        groups = sampler == "cyclic-poisson"  # as many as the noise has bands
        drawn = mechanism(
            sampler,
            examples=examples,
            expected_batch_size=examples / 4 if groups else 10,
            steps=4,
            bands=4 if groups else 1,
        ).batches(torch.Generator().manual_seed(0))
        return [set(drawn.sample().tolist()) for _ in range(4)]

    leaving = 39
    with_it, without = batches(40), batches(39)
    pairs = zip(with_it, without, strict=True)
    assert sum(one - {leaving} != other for one, other in pairs) > 1


def test_without_protection_nothing_is_spent_and_public_weights_are_named() -> None:
    of = mechanism("poisson", examples=100, expected_batch_size=10, steps=7)
    privacy = Privacy(noise_multiplier=2.0, delta=1e-3)
    found = calibrate(of.budget(privacy, privacy.noise_multiplier))
    assert state(of, privacy, found, private=True, clip_norm=None).epsilon == found.epsilon > 0
    statement = state(of, privacy, found, private=False, clip_norm=None)
    assert (statement.claim, statement.epsilon, statement.covers) == ("non-private", None, None)
    assert "public: they were given" not in covered_by_epsilon("add-remove", "example")
    weighted = covered_by_epsilon("add-remove", "example", (1.0, 0.5))
    assert "are private. The weights of the classes, 1, 0.5, are public: they were" in weighted


def test_users_who_stay_in_their_place_are_replaced_by_nothing() -> None:
    removed = Mechanism.asked_for(
        None, unit=User(count=100), size=10, steps=7, query=ClippedUserMean()
    )
    assert removed.adjacency == "add-remove-user"
    assert replace(removed, unit=User(count=100, stays=True)).adjacency == "zero-out"


def test_a_guarantee_says_what_it_covers_what_it_does_not_and_what_is_public() -> None:
    run = digits()
    statement = privacy_statement(run, budget(run))
    assert statement.covers is not None
    assert NEIGHBOURS["add-remove"] in statement.covers
    assert "parameters after every step" in statement.covers
    assert "n, the number of private examples, is public" in statement.covers
    assert f"Noise reaches {REACH:g} standard deviations" in statement.covers
    assert statement.does_not_cover == NOT_COVERED["full"]
    for what in ("training examples", "validation", "speed", "digests", "stopped the run"):
        assert what in statement.does_not_cover


@pytest.mark.parametrize("sampler", ["shuffled", "fixed-size"])
def test_a_nominal_epsilon_says_that_it_covers_nothing(sampler: str) -> None:
    run = digits(sampler=sampler)
    statement = privacy_statement(run, budget(run))
    assert (statement.claim, statement.covers) == ("nominal", None)
    assert statement.does_not_cover is None
