"""The closed forms behind the papers' experiments, their files and their fingerprints."""

from __future__ import annotations

import csv
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from clipnoise.core.state import Public
from clipnoise.data.digits import Digits
from clipnoise.errors import UserError
from clipnoise.methods.base import example, method_class
from clipnoise.methods.privatize_then_adapt.dp_adambc import concentration_bound
from clipnoise.models.base import model_class
from clipnoise.papers.base import (
    COMPARISON,
    Findings,
    Quantity,
    compare,
    experiment_class,
    experiments,
    fingerprint,
    load,
    read_published,
    write,
)
from clipnoise.papers.design_principles.fig2 import expected_loss
from clipnoise.papers.design_principles.negative_coordinates import crossing
from clipnoise.papers.dp_adambc.consistency import first_moment_error, target
from clipnoise.papers.dp_adambc.convergence import bound as lemma_3
from clipnoise.papers.dp_adambc.tables3_5 import (
    deviation_quantile,
    exceedance,
    gaussian_branch,
    martingale_bound,
)
from clipnoise.papers.dp_pmlf.theory import (
    fresh,
    partial_fractions,
    ratios,
    recursion,
    rho_squared,
    spread_around,
)
from clipnoise.papers.trials import Trials
from clipnoise.run import fingerprint as fingerprints
from clipnoise.run.replay import replay

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "workflow" / "reproductions"
PUBLISHED = ROOT / "reports" / "published"


def test_every_experiment_has_settings_and_published_numbers() -> None:
    found = {str(path.relative_to(SETTINGS).with_suffix("")) for path in SETTINGS.rglob("*.yaml")}
    assert found == set(experiments())
    for name in found:
        load(name, SETTINGS / f"{name}.yaml")
        read_published(PUBLISHED / f"{name}.csv")


def test_the_second_moment_of_scaled_gradients_settles_where_the_formula_says() -> None:
    """Without noise it is g² from the first step; with noise it settles at g²/(1 − σ²/B²)."""
    settings = SETTINGS / "design-principles" / "steady-state.yaml"
    small = {"coordinates": 300, "steps": 60, "noise_to_batch": [0.0, 0.5], "measured_share": 0.1}
    fast = {"learning_rate": 1.0, "clip_norm": 1e9, "gamma_scale": 1e-6, "betas": [0.9, 0.9]}
    variants = [{"method": "stp-adam", "options": fast}]
    experiment = load("design-principles/steady-state", settings, small | {"variants": variants})
    for quantity in experiment.run().quantities[:4]:
        assert quantity.formula == pytest.approx(quantity.measured, rel=0.05)


def test_settings_with_a_mistake_name_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("momentum: 0.9\nstep: 3\nsettings: []\n")
    with pytest.raises(UserError, match=r"settings\.yaml: step: unknown key.*'steps'"):
        load("dp-adambc/fig2-left", path)
    with pytest.raises(UserError, match="unknown experiment"):
        load("dp-adambc/fig2-lef", path)


def test_the_fingerprint_of_an_experiment_covers_its_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[set[str]] = []
    monkeypatch.setattr(
        "clipnoise.run.fingerprint.fingerprint_of", lambda all: seen.append(set(all))
    )
    for name in ("adadps/fig3", "dp-adambc/dp-adam-tracks-dp-sgdm"):
        fingerprint(name, SETTINGS / f"{name}.yaml")
    first, second = seen
    for name in ("adadps-side", "stp-adam", "dp-sgd", "sgd"):
        assert method_class(name).__module__ in first
    for kind in (method_class("dp-adam"), method_class("dp-sgdm"), model_class("logistic"), Digits):
        assert kind.__module__ in second
    assert "clipnoise.run.train" in second
    assert not {module for modules in seen for module in modules if ".report" in module}


def test_editing_a_figure_runs_no_experiment_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, module = "adadps/fig3", "clipnoise.papers.adadps"
    path, settings = Path(inspect.getfile(experiment_class(name))), SETTINGS / f"{name}.yaml"
    copy = tmp_path / "adadps.py"
    source = fingerprints._source
    monkeypatch.setattr(fingerprints, "_source", lambda m: copy if m == module else source(m))

    def edited(old: str, new: str) -> str:
        assert old in path.read_text()
        copy.write_text(path.read_text().replace(old, new))
        fingerprints._definitions.cache_clear()
        return fingerprint(name, settings)

    before = edited("import math", "import math")
    assert edited("height=3.3", "height=4") == before  # a helper of `figures`
    assert edited("Final losses, mean", "Final mean losses") == before  # `remarks`
    assert edited("import significant", "import decimal as significant") == before
    assert edited("Every method runs five times", "Every method runs six times") == before  # setup
    assert edited("if not losses[t] < 1e6", "if not losses[t] < 1e7") != before
    assert edited("square().mean()", "square().sum()") != before  # a class that `run` uses
    fingerprints._definitions.cache_clear()


def test_a_comparison_joins_by_cell_and_keeps_what_has_no_partner() -> None:
    quantities = [
        Quantity("a", 2.0),
        Quantity("b, another way", 5.0, "b"),
        Quantity("c", 3.0, formula=2.5),
        Quantity("d", None),
    ]
    rows = compare(quantities, {"a": 1.5, "b": 5.0, "d": 7.0, "left": 9.0})
    assert [tuple(row.values()) for row in rows] == [
        ("a", 1.5, 2.0, 0.5),
        ("b, another way", 5.0, 5.0, 0.0),
        ("c", 2.5, 3.0, 0.5),
        ("d", 7.0, None, None),
        ("left", 9.0, None, None),
    ]


def test_findings_become_csv_files(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 0.125}, {"step": 2, "loss": None}]
    write(Findings({"data": rows}, [Quantity("x", 1.0)]), {"x": 0.5}, tmp_path)
    assert (tmp_path / "data.csv").read_text() == "step,loss\n1,0.125\n2,\n"
    with (tmp_path / "comparison.csv").open() as stream:
        assert list(csv.reader(stream)) == [list(COMPARISON), ["x", "0.5", "1", "0.5"]]


@pytest.mark.parametrize(
    ("t", "alpha", "published"),
    [(10, 0.05, 8.388e-8), (100, 0.01, 3.180e-8), (10**4, 0.1, 5.347e-9)],
)
def test_table_3_follows_the_logarithm_of_two_over_alpha(
    t: int, alpha: float, published: float
) -> None:
    phi = (0.4 * 0.1 / 256) ** 2
    assert concentration_bound(t, 0.999, phi, alpha) == pytest.approx(published, rel=5e-4)
    assert concentration_bound(t, 0.999, phi, 2 * alpha) < 0.95 * published


def test_the_first_cell_of_table_3_takes_the_first_branch_against_its_condition() -> None:
    phi = (0.4 * 0.1 / 256) ** 2
    assert gaussian_branch(10, 0.999, 4 * phi, 0.01) == pytest.approx(1.005e-7, rel=5e-4)
    assert concentration_bound(10, 0.999, phi, 0.01) == pytest.approx(1.0395e-7, rel=5e-4)


@pytest.mark.parametrize(
    ("t", "alpha", "published"),
    [(10, 0.01, 3.222e-3), (1000, 0.1, 2.520e-4), (10**4, 0.05, 1.902e-4)],
)
def test_table_4_follows_proposition_4(t: int, alpha: float, published: float) -> None:
    assert martingale_bound(t, 0.999, 0.4, 1.0, 256, alpha) == pytest.approx(published, rel=5e-4)


def test_proposition_4_refuses_where_its_first_branch_does_not_hold() -> None:
    with pytest.raises(ValueError, match="first branch"):
        martingale_bound(1, 0.999, 100.0, 1.0, 1.0, 0.01)


@pytest.mark.parametrize("x", [0.4, 1.0, 2.3])
def test_equal_weights_give_the_chi_square_distribution(x: float) -> None:
    assert exceedance(10, 1 - 1e-9, x) == pytest.approx(chi2.sf(10 * x, 10), abs=1e-6)


def test_the_deviation_quantile_leaves_alpha_outside() -> None:
    xi = deviation_quantile(100, 0.99, 0.05)
    outside = exceedance(100, 0.99, 1 + xi) + 1 - exceedance(100, 0.99, 1 - xi)
    assert outside == pytest.approx(0.05, abs=1e-6)
    assert deviation_quantile(100, 0.99, 0.05, upper=True) < xi


@pytest.mark.parametrize(
    ("t", "alpha", "published"),
    [(10, 0.1, 1.493e-8), (100, 0.05, 6.181e-9), (1000, 0.01, 2.940e-9)],
)
def test_table_5_is_the_upper_tail_of_noise_divided_by_255(
    t: int, alpha: float, published: float
) -> None:
    phi = (0.4 * 0.1 / 256) ** 2
    xi = deviation_quantile(t, 0.999, alpha, variance=(256 / 255) ** 2, upper=True)
    assert phi * xi == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("name", ["dp-adagrad", "dp-adambc", "ime-adagrad", "stp-adam"])
def test_trials_at_once_go_where_each_goes_alone(name: str, trials: int) -> None:
    options = {"learning_rate": 0.1, "clip_norm": 0.7}
    constants = {"noise_multiplier": 0.5, "expected_batch_size": 2.0}
    draws = torch.Generator().manual_seed(3)
    gradients = torch.randn(trials, 6, 2, 4, generator=draws, dtype=torch.float64)
    noise = torch.randn(trials, 6, 2, 4, generator=draws, dtype=torch.float64)
    public = Public(**constants, total_steps=6)
    together = Trials(
        method_class(name)(**options), public, torch.zeros(trials, 4, dtype=torch.float64)
    )
    for t in range(6):
        together.advance(gradients[:, t], noise[:, t])
    for i in range(trials):
        draws_of_query = noise[i, :, : example(method_class(name)).query.draws]
        alone = replay(name, {**options, **constants}, np.zeros(4), gradients[i], draws_of_query)
        np.testing.assert_allclose(together.theta[i].numpy(), alone[-1], rtol=1e-12)


def test_the_truth_has_the_entropy_of_its_labels() -> None:
    x = np.linspace(-12, 12, 200_001)
    p = 1 / (1 + np.exp(-x))
    entropy = (
        -(p * np.log(p) + (1 - p) * np.log1p(-p)) * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    )
    assert expected_loss(1.0) == pytest.approx(np.trapezoid(entropy, x), abs=1e-9)
    assert expected_loss(1.0) == pytest.approx(0.5994, abs=5e-5)
    assert min(expected_loss(0.9), expected_loss(1.1)) > expected_loss(1.0)
    assert expected_loss(0.0) == pytest.approx(math.log(2))


def test_a_crossing_is_interpolated_between_its_neighbours() -> None:
    points = [(0.1, 0.5), (1.0, 0.1), (0.1, 0.3)]
    assert crossing(points, 0.25) == pytest.approx(10**-0.5)
    assert crossing(points, 0.05) is None


@pytest.mark.parametrize(("t", "holds"), [(1, False), (10, True), (50, True)])
def test_lemma_3_as_printed_fails_at_the_first_step_alone(t: int, holds: bool) -> None:
    """At t = 1 it says P[β₂(C + z)² ≥ δ] ≤ α with δ hardly above β₂ E[(C + |z|)²]."""
    phi, beta2, clip_norm, alpha = (0.4 * 0.1 / 256) ** 2, 0.999, 0.1, 0.05
    delta = lemma_3(t, beta2, phi, clip_norm, alpha)
    draws = np.random.default_rng(0)
    noisy = clip_norm + math.sqrt(phi) * draws.standard_normal((t, 20_000))
    v = (beta2 ** np.arange(1, t + 1)) @ noisy**2
    assert ((v >= delta).mean() <= alpha) == holds
    if t == 1:
        exact = norm.sf((math.sqrt(delta / beta2) - clip_norm) / math.sqrt(phi))
        assert (v >= delta).mean() == pytest.approx(exact, abs=0.02)


def test_the_printed_bound_of_dp_adambc_is_the_logarithm_of_a_negative_number() -> None:
    experiment = load(
        "dp-adambc/convergence",
        SETTINGS / "dp-adambc/convergence.yaml",
        {
            "steps": [1],
            "horizon": 5,
            "trials": 50,
            "problem": {
                **{"dimension": 3, "start": 2.0, "steps": 30, "learning_rate": 0.01},
                **{"epsilon": 1e-8, "trials": 2},
            },
        },
    )
    found = {quantity.name: quantity for quantity in experiment.run().quantities}
    for number in (6, 7):
        argument = found[f"Proposition {number}, DP-AdamBC, argument of the logarithm"].measured
        assert argument is not None
        assert argument < 0
        squared = found[f"Proposition {number}, DP-Adam, mean squared gradient"]
        assert squared.measured is not None
        assert squared.formula is not None
        assert 0 < squared.measured < squared.formula


def test_the_error_of_a_first_moment_is_that_of_its_weights() -> None:
    beta, t = 0.8, 7
    weights = (1 - beta) / (1 - beta**t) * beta ** np.arange(t)
    assert weights.sum() == pytest.approx(1)
    assert first_moment_error(beta, t) == pytest.approx((weights**2).sum())


def test_what_is_left_of_noise_lowers_the_update() -> None:
    assert target(0.1, 0.0) == target(10, 0.0) == 1
    assert target(1, 0.0, bias=1) == pytest.approx(1 / math.sqrt(2))
    assert target(1, 0.5) == pytest.approx(1 / math.sqrt(1.25))


def test_the_update_of_the_suite_goes_where_the_simulation_says() -> None:
    """The dp-adambc of the suite is as near to its target as the recursion of the experiment."""
    settings = SETTINGS / "dp-adambc" / "consistency.yaml"
    small = {"lengths": [50], "signals": [1.0], "trials": 300}
    found = load("dp-adambc/consistency", settings, small).run().quantities
    measured = {one.name: one.measured for one in found}
    for name in ("dp-adambc", "dp-adam"):
        betas = (1 - 1 / 50, 1 - 1 / 50)
        floor = {"gamma_prime": 1e-12} if name == "dp-adambc" else {"gamma": 0.0}
        method = example(method_class(name), learning_rate=1.0, clip_norm=100, betas=betas, **floor)
        public = Public(noise_multiplier=0.01, expected_batch_size=1, total_steps=200)
        trials = Trials(method, public, torch.zeros(300, 1, dtype=torch.float64))
        draws = torch.Generator().manual_seed(0)
        for _ in range(200):
            before = trials.theta
            gradients, noise = (
                torch.randn(300, 1, 1, generator=draws, dtype=torch.float64) for _ in range(2)
            )
            trials.advance(1 + 0.3 * gradients, noise)
        median = float((before - trials.theta).median())
        wanted = measured[f"{name}, E[ḡ]² = 1Φ, n = 50, median update"]
        assert median == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("a", "b"),
    [((-0.9,), (0.15, -0.05)), ((-0.7, -0.2), (0.05, 0.05)), ((), (1.0,)), ((-1.0, 0.5), (0.5,))],
    ids=["one pole", "two poles", "no pole", "complex poles"],
)
def test_partial_fractions_give_the_response_of_a_filter(
    a: tuple[float, ...], b: tuple[float, ...]
) -> None:
    kappa = partial_fractions(a, b, 30)
    assert kappa == pytest.approx(recursion(a, b, 30), abs=1e-14)
    assert kappa[0] == pytest.approx(b[0])


def test_ratios_of_a_filter_without_memory_are_those_of_sgd() -> None:
    found = ratios(partial_fractions((), (1.0,), 50), c=0.5)
    assert (found.dp, found.sgd) == (0.5, 0.25)
    assert ratios(partial_fractions((-0.9,), (0.1,), 5000), c=1).dp == pytest.approx(19, rel=0.02)


def test_momentum_divides_the_variance_of_fresh_examples_by_rho_squared() -> None:
    draws = np.random.default_rng(0)
    x, errors = draws.normal(size=(4000, 3)), draws.normal(size=(4000, 2))
    mean = errors.T @ x / len(x)
    outer = errors[:, :, None] * x[:, None, :]
    alone = spread_around(mean, errors, x)
    assert alone == pytest.approx(((outer - mean) ** 2).sum() / len(x))
    weights = 0.5 ** np.arange(3)
    left = fresh(weights / weights.sum(), [errors] * 3, x, mean, draws) / alone
    assert left == pytest.approx(1 / rho_squared(0.5, 3), rel=0.1)
