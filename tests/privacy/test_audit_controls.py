"""Positive controls: every deliberate mistake must be detected."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from clipnoise.audit import mistakes
from clipnoise.audit.bench import least_squares
from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import EXPECTED_BATCH_SIZE, check_contract, check_denominator
from clipnoise.audit.controls import CONTROLS, optimistic_epsilon
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import Settings
from clipnoise.audit.moments import life
from clipnoise.audit.noise import check_noise
from clipnoise.audit.runs import check_updates
from clipnoise.audit.subject import Subject, subject
from clipnoise.methods.base import ClippedMean, methods
from clipnoise.privacy.accountants.fixed_size import shuffled_epsilon_at_least
from clipnoise.privacy.accountants.poisson import epsilon

# Controls as docs/auditing.md lists them: what is wrong, and what catches it.
PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"
ROW = re.compile(
    r"^\| `([\w-]+)` \| (.+?) \| (?:contract check \((.+?)\))?(?:, )?(.*?) \| .+ \|$", re.MULTILINE
)
ROWS = ROW.findall(PAGE.read_text())
CAUGHT = {name: checks.split(", ") for name, _, checks, _ in ROWS if checks}
OTHERS = [(name, other) for name, _, _, others in ROWS for other in others.split(", ") if other]

# What the first of these checks says.
SAID = {
    "half-noise": "times the declared variance",
    "each-pass-clipped": "moves the release 3 times",
    "each-view-clipped": "moves the release 3 times",
    "difference-not-clipped": "as far as declared",
    "microbatch-at-c": "moves the release 2 times",
    "psac-above-its-bound": "moves the release 1.2",
    "each-layer-at-c": "moves the release 1.7",
    "count-without-noise": "times the declared variance of the count",
    "realised-batch-size": "the denominator changes",
    "private-class-sizes": "the denominator changes",
    "private-ridge": "depends on private data",
    "private-preconditioner": "as far as declared",
    "scaled-after-clipping": "as far as declared",
    "noise-on-active-alone": "times the declared variance",
    "slots-too-wide": "moves the release 2.83 times",
    "node-at-c": "one node of a graph",
    "shuffled-as-poisson": "batches are not Poisson",
    "clean-mean-in-update": "depends on private data",
    "last-run-in-update": "depends on private data",
    "clean-mean-in-model": "depends on private data",
    "batch-size-in-update": "depends on private data",
    "scale-from-private-mean": "depends on private data",
    "point-from-private-mean": "depends on private data",
    "clip-norm-from-private-mean": "depends on private data",
    "half-sensitivity": "moves the release 2 times",
    "tenth-noise-for-some-batches": "moves the release 10 times",
    "release-over-its-norm": "as far as declared",
    "noise-left-out": "times the declared variance",
    "noise-reused": "covariance",
    "noise-one-sided": "a mean of",
    "noise-cut-off": "beyond 5.77 standard deviations",
    "correlated-noise-unscaled": "times as far as they may",
    "one-participation-for-all": "times as far as they may",
    "denominator-from-n": "as far as declared",
    "denominator-from-n-rounded-down": "as far as declared",
    "nothing-trained": "released values move 0.0% of the parameters",
    "statistics-of-the-batch": "as far as declared",
    "network-keeps-examples": "as far as declared",
    "dropout-by-position": "as far as declared",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs and grids as short as the mistakes allow."""
    runs = partial(check_updates, runs=((4, None, 15),))
    monkeypatch.setattr("clipnoise.audit.contract.check_updates", runs)
    monkeypatch.setattr(
        "clipnoise.audit.noise.GRID", ((4, None, 1.0, 1.3, 30), (64, 80, 0.1, 0.5, 20))
    )
    monkeypatch.setattr("clipnoise.audit.contract.GRID", ((40.0, 5.0, 0.3, 3, (3,)),))
    monkeypatch.setattr("clipnoise.audit.contract.REAL", ())


# Together they are caught by every part of the contract check; the others are long.
ONE_OF_EACH = (
    "half-noise",
    "clip-norm-from-private-mean",
    "node-at-c",
    "shuffled-as-poisson",
    "nothing-trained",
)


def test_every_part_of_the_contract_check_exposes_a_control_that_is_not_long() -> None:
    caught = {check for name in ONE_OF_EACH for check in CAUGHT[name]}
    assert caught == {check for checks in CAUGHT.values() for check in checks}


@pytest.mark.usefixtures("short")
@pytest.mark.quick(name=ONE_OF_EACH)
@pytest.mark.parametrize("name", CAUGHT)
def test_the_contract_check_exposes(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every check that the documentation names."""
    if name in ("dropout-by-position", "each-layer-at-c"):  # only networks with layers show it
        monkeypatch.setattr("clipnoise.audit.contract.REAL", (4,))
    build = CONTROLS[name].build
    assert build is not None
    result = check_contract(build(), cache, attacked=(3,))
    assert result.verdict == "broken"
    said = dict(zip(result.broken_checks, result.broken, strict=True))
    assert set(CAUGHT[name]) <= set(said)
    assert SAID[name] in said[CAUGHT[name][0]]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_sound_noise_is_not_refuted(seed: int, cache: Path) -> None:
    assert check_noise(subject("ime-adam"), cache, seed).holds


@pytest.mark.usefixtures("short")
def test_noise_that_is_not_a_number_is_not_as_declared(cache: Path) -> None:
    broken = mistakes.crossing(normals=lambda noise: [normal * math.nan for normal in noise])
    found = check_noise(subject("dp-sgd", cross=broken), cache)
    assert (found.holds, found.off) == (False, math.inf)


def test_a_denominator_that_gives_no_number_is_not_constant() -> None:
    """Of two copies of an example the mean is a number, of four it is none."""

    class Overflowing(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (mean / (mean.norm() * EXPECTED_BATCH_SIZE < 2.5 * clip_norm),)

    leak = Subject(mistakes.LeakySGD(query=Overflowing()))
    (moment,) = life(leak, least_squares(6), expected_batch_size=EXPECTED_BATCH_SIZE, attacked=(1,))
    assert not check_denominator(moment).holds


@pytest.mark.quick(name=["shuffled-as-poisson", "curvature-left-out"])
@pytest.mark.parametrize("name", [name for name, other in OTHERS if other == "re-accounting"])
def test_re_accounting_exposes(name: str) -> None:
    claim = CONTROLS[name].claim
    assert claim is not None
    assert claim().refuted


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, other in OTHERS if other == "empirical audit"])
def test_the_empirical_audit_exposes(name: str, cache: Path) -> None:
    """At full participation, where the audit sees most, a small one is enough."""
    build = CONTROLS[name].build
    assert build is not None
    settings = Settings(runs=50, sampling_rate=1.0)
    result = audit(build(), cache, settings)
    assert result.verdict == "refuted"
    exposing = result.final_bound if name == "clean-mean-in-update" else result.bound
    assert exposing.epsilon > result.claimed_epsilon


def test_the_documentation_lists_every_control_and_what_catches_it() -> None:
    assert {name: mistake for name, mistake, *_ in ROWS} == MISTAKES
    assert set(CONTROLS) == set(MISTAKES) == {*CAUGHT, *dict(OTHERS)}
    empirical = [(name, "empirical audit") for name, it in CONTROLS.items() if it.empirical]
    accounted = [(name, "re-accounting") for name, it in CONTROLS.items() if it.claim]
    assert sorted(OTHERS) == sorted(empirical + accounted)
    assert not set(CONTROLS) & set(methods())


def test_shuffled_batches_cost_more_than_poisson_by_far() -> None:
    poisson = epsilon("rdp", noise_multiplier=0.5, sampling_rate=1e-3, steps=1000, delta=1e-6)
    assert shuffled_epsilon_at_least(0.5, 1000, 1e-6) > 2 * poisson


def test_the_optimistic_estimate_is_below_the_accountants() -> None:
    low = optimistic_epsilon(1.0, 0.1, 50, 1e-5)
    high = epsilon("pld", noise_multiplier=1.0, sampling_rate=0.1, steps=50, delta=1e-5)
    assert 0.98 * high < low <= high
