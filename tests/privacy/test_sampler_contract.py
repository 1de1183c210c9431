"""Every sampler draws as the participation says by which it is accounted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mechanisms import mechanism

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import ACCOUNTANTS
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.samplers import SAMPLERS, check_accountant

N, STEPS, REPEATED = 12, 24, 400


def chosen(name: str, **values: Any) -> Mechanism:
    """Return a mechanism with a sampler, at sizes that it takes."""
    sizes: dict[str, Any] = {"examples": N, "expected_batch_size": 3, "steps": STEPS}
    special: dict[str, dict[str, Any]] = {
        "full": {"expected_batch_size": N},
        "truncated-poisson": {"largest_batch": N},
        "cyclic-poisson": {"bands": 3},
    }
    return mechanism(name, **{**sizes, **special.get(name, {}), **values})


def drawn(of: Mechanism, seed: int) -> torch.Tensor:
    """Return which unit is in which batch, shape (T, n)."""
    stream = of.batches(torch.Generator().manual_seed(seed))
    taken = torch.zeros(of.steps, N)
    for row in taken:
        row[stream.sample()] = 1
    return taken


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_unit_takes_part_as_often_as_is_accounted(name: str) -> None:
    of = chosen(name)
    runs = torch.stack([drawn(of, seed) for seed in range(REPEATED)])
    rate, groups = of.participation.sampling_rate, of.participation.groups
    share = runs.mean(dim=(0, 1)) * groups
    deviation = (rate * (1 - rate) / (REPEATED * STEPS / groups)) ** 0.5
    assert (share - rate).abs().max() <= 5 * deviation + 1e-6


@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if kind.turns])
def test_a_unit_takes_part_only_in_its_turns(name: str) -> None:
    of = chosen(name)
    groups = of.participation.groups
    assert groups > 1
    for taken in (drawn(of, seed) for seed in range(20)):
        for steps in taken.T:
            assert len({t % groups for t in steps.nonzero().flatten().tolist()}) <= 1


def test_one_group_that_takes_turns_is_poisson_sampling() -> None:
    one = chosen("cyclic-poisson", bands=1)
    assert torch.equal(drawn(one, 0), drawn(chosen("poisson"), 0))


@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if kind.whole])
def test_a_unit_takes_part_in_every_turn_where_nothing_is_sampled(name: str) -> None:
    of = chosen(name)
    assert of.participation.sampling_rate == 1
    assert (drawn(of, 0).sum(dim=0) == STEPS // of.participation.groups).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_saved_stream_goes_on_bit_for_bit(name: str) -> None:
    of = chosen(name)
    stream = of.batches(torch.Generator().manual_seed(1))
    for _ in range(5):
        stream.sample()
    again = of.batches(torch.Generator().manual_seed(2))
    again.set_state(stream.get_state())
    for _ in range(9):
        assert torch.equal(stream.sample(), again.sample())


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_claimed_follows_from_the_classes_alone(name: str, accountant: Any) -> None:
    """An accountant that a sampler does not prove is refused, or its ε is not called proved.

    Where it proves something of examples, ε is about that.
    """
    try:
        check_accountant(accountant, name)
    except UserError:
        with pytest.raises(UserError, match="accountant"):
            _ = chosen(name, accountant=accountant).participation
        return
    of = chosen(name, accountant=accountant)
    proved = {adjacency for adjacency, able in SAMPLERS[name].proved.items() if accountant in able}
    assert of.proved == (of.adjacency in proved) == bool(proved - {"add-remove-node"})


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_goes_only_where_its_cost_is_known(name: str) -> None:
    correlated = SAMPLERS[name].correlated
    assert SAMPLERS[name].noise().startswith("any" if correlated == "any" else "independent")
    able = "monte-carlo" if SAMPLERS[name].proves("monte-carlo", "add-remove") else "pld"
    banded = chosen(name, bands=2, accountant=able)
    if correlated is None:
        with pytest.raises(UserError, match="bands"):
            _ = banded.participation
    else:
        assert banded.participation.groups >= (2 if correlated == "banded" else 1)
