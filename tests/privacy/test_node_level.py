"""Node-level accounting against direct sums, integrals, random draws and the exact special case."""

from __future__ import annotations

import math
import shlex

import dp_accounting
import numpy as np
import pytest
from budgets import flat_budget
from mechanisms import mechanism, participation_under
from scipy.special import logsumexp

from clipnoise.cli.privacy import budget_of
from clipnoise.cli.privacy import calibrate as command
from clipnoise.errors import UserError
from clipnoise.privacy.accountants.nodes import node_curve, node_epsilon
from clipnoise.privacy.accountants.poisson import ORDERS, AccountantError, Releases, rdp_curve
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.microbatches import MicroBatches
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.queries import ClippedMean
from clipnoise.privacy.samplers import SAMPLERS
from clipnoise.privacy.units import Node

ALPHA = np.array(ORDERS)
ARXIV = {"affected_examples": 8, "sampling_rate": 10_000 / 90_941, "examples": 90_941}  # K = 7


@pytest.mark.parametrize(
    ("nodes", "degree", "batch"), [(40, 0, 10), (40, 3, 10), (40, 7, 39), (90_941, 7, 10_000)]
)
def test_the_curve_is_the_published_sum_over_the_hypergeometric_distribution(
    nodes: int, degree: int, batch: int
) -> None:
    clip_norm, multiplier = 0.3, 2.0
    unit = Node(count=nodes, degree=degree)
    deviation = multiplier * unit.sensitivity_factor(ClippedMean(), MicroBatches()) * clip_norm
    rho = np.arange(degree + 2)
    exponent = 2 * (ALPHA * (ALPHA - 1))[:, None] * rho**2 * clip_norm**2 / deviation**2
    every = math.comb(nodes, batch)
    exact = [
        math.comb(degree + 1, r) * math.comb(nodes - degree - 1, batch - r) / every
        for r in rho.tolist()
    ]
    direct = logsumexp(exponent, b=exact, axis=1) / (ALPHA - 1)

    curve = node_curve(multiplier, degree + 1, batch / nodes, nodes)

    np.testing.assert_allclose(curve, direct, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("rate", "sigma"), [(0.001, 0.7), (0.1, 2.0), (0.5, 0.5), (0.9, 30.0)])
def test_without_neighbours_it_is_not_below_the_exact_subsampled_gaussian(
    rate: float, sigma: float
) -> None:
    exact = rdp_curve(sigma, rate)
    finite = np.isfinite(exact)

    assert (node_curve(sigma, 1, rate)[finite] >= exact[finite] * (1 - 1e-9)).all()


@pytest.mark.parametrize("examples", [None, 50])
def test_whole_batches_cost_one_gaussian(examples: int | None) -> None:
    np.testing.assert_allclose(node_curve(3.0, 5, 1.0, examples), ALPHA / 18, rtol=1e-11)
    assert (node_curve(3.0, 5, 1.0, examples) > ALPHA / 18).all()  # by what rounding may lose
    assert not node_curve(3.0, 5, 1.0, examples).flags.writeable  # it is kept


def test_random_draws_of_the_nodes_agree_with_the_curve() -> None:
    terms, nodes, batch, sigma = 4, 60, 15, 2.0
    drawn = np.random.default_rng(0).hypergeometric(terms, nodes - terms, batch, size=400_000)
    curve = node_curve(sigma, terms, batch / nodes, nodes)
    for order in (1.5, 2.0, 8.0):
        moments = np.exp(order * (order - 1) / (2 * sigma**2) * (drawn / terms) ** 2)
        error = moments.std() / math.sqrt(len(drawn))
        expected = math.exp(curve[ORDERS.index(order)] * (order - 1))
        assert abs(moments.mean() - expected) < 5 * error


def test_batches_of_a_fixed_size_cost_no_more_than_poisson_batches() -> None:
    terms, rate, nodes = 8, 0.1, 200
    poisson, fixed = node_curve(1.0, terms, rate), node_curve(1.0, terms, rate, nodes)

    assert (fixed <= poisson * (1 + 1e-12)).all()
    np.testing.assert_allclose(node_curve(1.0, terms, rate, 10**9), poisson, rtol=1e-6)


def test_epsilon_is_converted_as_everywhere_else() -> None:
    curve = node_curve(2.0, **ARXIV)
    theirs, _ = dp_accounting.rdp.compute_epsilon(list(ORDERS), curve * 300, 1e-5)

    ours = node_epsilon(Releases(noise_multiplier=2.0, **ARXIV, steps=300, delta=1e-5))

    assert ours == pytest.approx(theirs, rel=1e-6)


def test_no_steps_cost_nothing_and_no_noise_has_no_bound() -> None:
    assert node_epsilon(Releases(noise_multiplier=1, **ARXIV, steps=0, delta=1e-5)) == 0
    with pytest.raises(AccountantError, match="noise_multiplier"):
        node_epsilon(Releases(noise_multiplier=1e-5, **ARXIV, steps=1, delta=1e-5))


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_a_budget_of_nodes_is_calibrated_and_its_options_repeat_it(sampler: str) -> None:
    counted = 90_941 if sampler == "fixed-size" else None
    target = flat_budget(
        epsilon=6,
        delta=1e-5,
        sampling_rate=10_000 / 90_941,
        steps=300,
        affected_examples=8,
        examples=counted,
        sampler=sampler,
        evaluation_steps=(0, 150, 300),
    )
    found = calibrate(target)

    assert 6 - 1e-3 < found.epsilon <= 6
    assert found.adjacency == "add-remove-node"
    assert found.spent[0] == 0 < found.spent[150] < found.spent[300] == found.epsilon
    options = command.make_context("calibrate", shlex.split(target.options())).params
    assert budget_of(options).key == target.key


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampler": "fixed-size"},
        {"sampler": "poisson", "examples": 100},
        {"sampler": "shuffled"},
        {"accountant": "pld"},
    ],
)
def test_a_budget_of_nodes_that_nothing_covers_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"examples|sampler|accountant"):
        flat_budget(
            epsilon=1, delta=1e-5, sampling_rate=0.1, steps=10, affected_examples=3, **wrong
        )


@pytest.mark.parametrize(
    ("sampler", "accountant"),
    [("shuffled", "rdp"), ("cyclic", "rdp"), ("fixed-size", "prv"), ("poisson", "pld")],
)
def test_only_analysed_pairs_may_draw_nodes(sampler: str, accountant: str) -> None:
    assert not SAMPLERS[sampler].proves(accountant, "add-remove-node")
    with pytest.raises(UserError, match="no analysis"):
        participation_under(
            sampler,
            examples=100,
            expected_batch_size=10,
            steps=5,
            accountant=accountant,
            degree=3,
        )


@pytest.mark.parametrize(("sampler", "counted"), [("poisson", None), ("fixed-size", 100)])
def test_the_participation_of_nodes_counts_the_gradients_that_change(
    sampler: str, counted: int | None
) -> None:
    participation = participation_under(
        sampler, examples=100, expected_batch_size=10, steps=5, degree=3, accountant="rdp"
    )

    assert (participation.affected_examples, participation.examples) == (4, counted)
    assert SAMPLERS[sampler].proves("rdp", "add-remove-node")


def test_a_node_is_added_or_removed_and_never_replaced() -> None:
    sizes = {"examples": 100, "expected_batch_size": 10, "steps": 5}
    of = mechanism("poisson", degree=3, **sizes)
    assert of.adjacency == "add-remove-node"

    class Replaced(ClippedMean):
        adjacency = "replace"

    with pytest.raises(UserError, match="nodes of a graph are accounted for being added"):
        of.unit.check(Replaced(), of.microbatches)
    with pytest.raises(UserError, match="no analysis covers micro-batches of nodes"):
        of.unit.check(of.query, MicroBatches(size=2))


def test_runs_that_are_not_private_draw_poisson_batches_of_nodes_too() -> None:
    of = Mechanism.asked_for(
        None, unit=Node(count=100, degree=3), size=10, steps=7, query=ClippedMean()
    )
    assert of.participation == Participation(sampling_rate=0.1, steps=7, affected_examples=4)
