"""Runs that several processes train together, and the mistakes that such training could make.

`compute` is called in each process of a group of three: see `tests/contract/test_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from every_method import required
from torch import Tensor, distributed, nn

import clipnoise
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import Settings
from clipnoise.audit.subject import subject
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.methods.base import methods
from clipnoise.run.checkpoint import Checkpoint, InterruptedRunError
from clipnoise.run.outcome import Clock
from clipnoise.run.ranks import Ranks
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run, train

Draw = Callable[[], Sequence[Tensor]]
STEPS, SIGMA = 4, 1.0
ENGINES: dict[str, type[GradientEngine]] = {
    kind.name: kind for kind in (FactoredEngine, VmapEngine, OneByOne)
}


@dataclass(frozen=True)
class Case:
    """A run of a method, with settings of its sections, and the engine that it must use."""

    method: str
    options: dict[str, Any] | None = None
    privacy: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    engine: str = ""

    @property
    def spec(self) -> RunSpec:
        method = methods()[self.method]
        options = {**required(self.method), **(self.options or {})}
        built = clipnoise.fields.parse(method, options)
        if built.uses_side_information:
            options["side_information"] = {"source": "public-gradients"}
        public = built.uses_public_data() or built.uses_side_information
        users = built.query.adjacency == "add-remove-user"
        privacy = {"noise_multiplier": SIGMA, **(self.privacy or {})}
        return from_mapping(
            {
                "dataset": {
                    "id": "digits-users" if users else "digits",
                    **({"public_examples": 60} if public else {}),
                },
                "model": method.made_for or "logistic",
                "method": {"id": self.method, **options},
                "privacy": privacy if built.query.draws else None,
                "training": {
                    "expected_batch_size": 20,
                    "steps": STEPS,
                    "physical_batch_size": 4,
                    **(self.training or {}),
                },
                "seed": 3,
            }
        )


def correlated(kind: str, sampler: str, **options: Any) -> dict[str, Any]:
    return {"sampler": sampler, "noise": {"kind": kind, **options}}


CASES = {
    **{f"engine {name}": Case("dp-adambc", engine=name) for name in ENGINES},
    "non-private": Case("sgd"),
    "one of each family: adam": Case("dp-adam"),
    "scaled before the clip": Case("stp-adam"),
    "several points": Case("dp-pmlf", {"history": 3}),
    "two moments": Case("jme-adam"),
    "an oracle": Case("adadps-ideal"),
    "error feedback": Case("disk"),
    "a count": Case("dp-sgd-quantile"),
    "losses": Case("dpzero"),
    "public gradients": Case("adadps-adam"),
    "a warm start": Case("dp-sgd-warm"),
    "a clip per layer": Case("dp-sgd", {"clip_rule": {"kind": "hard", "per": "layer"}}),
    "users": Case("dp-fedavg"),
    "users, noise of each": Case("dp-fedavg", {"noise_placement": "per-user"}),
    "micro-batches": Case("dp-sgd", privacy={"microbatch_size": 4}),
    "an average": Case("dp-sgd", training={"average": {"kind": "ema", "decay": 0.9}}),
    "batches that are empty for some": Case("dp-sgd", training={"expected_batch_size": 1}),
    "shuffled": Case("dp-sgd", privacy={"sampler": "shuffled"}),
    "fixed-size": Case("dp-sgd", privacy={"sampler": "fixed-size"}),
    "banded": Case("dp-sgd", privacy=correlated("banded", "cyclic-poisson", bands=2)),
    "dense": Case("stp-adam", privacy=correlated("dense", "cyclic")),
    "banded-inverse": Case("dp-sgd", privacy=correlated("banded-inverse", "cyclic", bands=2)),
    "lambda-cgd": Case("dp-adambc", privacy=correlated("lambda-cgd", "cyclic", cancelled=0.8)),
    "blt, two moments": Case("jme-adam", privacy=correlated("blt", "cyclic", buffers=2)),
    "tree": Case("dp-sgd", privacy=correlated("tree", "cyclic")),
}


def prepared(case: Case, cache: Path, ranks: Ranks, device: str = "cpu") -> Run:
    run = Run.prepare(case.spec, cache, device, noise_multiplier=SIGMA)
    run.ranks = ranks
    if case.engine:
        engine = ENGINES[case.engine](run.engine.network, run.engine.losses)
        run.units = replace(run.units, engine=engine)
    return run


def trained(case: Case, cache: Path, ranks: Ranks) -> Tensor:
    """Return the model after all steps, less that before them."""
    run = prepared(case, cache, ranks)
    start = run.state.theta
    for _ in run.steps(Clock()):
        pass
    return run.evaluated() - start


class OwnNoise(Ranks):
    """Each process draws noise of its own and takes a step with it."""

    def vectors(self, draw: Draw, likes: Sequence[Tensor]) -> list[Tensor]:
        return [(1 + self.rank) * value for value in draw()]


class NoiseBeforeTheSum(Ranks):
    """Each process adds noise to its share, so that the sum has it several times."""

    def total(self, share: Tensor) -> Tensor:
        draws = torch.Generator().manual_seed(self.rank)
        return super().total(share + SIGMA * torch.randn(share.shape, generator=draws))


class NoNoise(Ranks):
    """The noise of no process is added."""

    def vectors(self, draw: Draw, likes: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(value) for value in super().vectors(draw, likes)]


class SameShare(Ranks):
    """Every process computes the whole batch."""

    def share(self, batch: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return batch, groups


class SplitGroups(Ranks):
    """Members of a micro-batch are in the shares of two processes."""

    def share(self, batch: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor | None]:
        chosen = slice(self.rank, None, self.count)
        return batch[chosen], None if groups is None else groups[chosen]


class DividedTwice(Ranks):
    """The sum is divided by the number of processes, as gradients in ordinary training are."""

    def total(self, share: Tensor) -> Tensor:
        return super().total(share) / self.count


MISTAKES: dict[str, tuple[type[Ranks], Case]] = {
    "noise of its own on every rank": (OwnNoise, CASES["engine factored"]),
    "noise in every share": (NoiseBeforeTheSum, Case("dp-sgd")),
    "no noise": (NoNoise, Case("dp-sgd")),
    "the same batch on every rank": (SameShare, Case("dp-sgd")),
    "a micro-batch on two ranks": (SplitGroups, CASES["micro-batches"]),
    "a sum divided twice": (DividedTwice, Case("dp-sgd")),
}


class Net(nn.Module):
    """A network of a user's own, with dropout and, unless told otherwise, other starting values."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rank)
            self.layers = nn.Sequential(
                nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.4), nn.Linear(5, 3)
            )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


def own_training(rank: int, **settings: Any) -> Any:
    """Prepare a training in a loop of one's own, on the same examples in every process."""
    draws = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 6, generator=draws)
    targets = torch.randint(3, (150,), generator=draws)
    given = {
        "method": "dp-adambc",
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "expected_batch_size": 30,
        "steps": STEPS,
        "learning_rate": 0.1,
        "clip_norm": 1.0,
        "seed": 4,
        "device": "cpu",
        **settings,
    }
    given.setdefault("data", (inputs, targets))
    return clipnoise.private(Net(rank), nn.CrossEntropyLoss(reduction="none"), **given)


def own_theta(training: Any) -> Tensor:
    for _ in training:
        pass
    return torch.cat([p.detach().flatten() for p in training._trainer.engine.network.parameters()])


def refused(work: Callable[[], object]) -> str:
    """Return what an error says, with its kind; nothing where there is none."""
    try:
        work()
    except (clipnoise.errors.UserError, ArithmeticError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def compute(ranks: Ranks, cache: Path) -> dict[str, Any]:
    """Train every case as one of three processes; return what this one has found, by name."""
    two = distributed.new_group([0, 1])
    groups = {3: ranks, **({2: Ranks(ranks.rank, 2, two)} if ranks.rank < 2 else {})}
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        for count, group in groups.items():
            found[f"{name} {count}"] = trained(case, cache, group)
            if count == 2:
                found[f"{name} again"] = trained(case, cache, group)
    if 2 in groups:
        _compute_two(groups[2], cache, found)
    found["own 3"] = own_theta(own_training(ranks.rank))
    _compute_own(ranks, cache, found)
    return found


def _compute_two(ranks: Ranks, cache: Path, found: dict[str, Any]) -> None:
    """Add what two processes find: mistakes, secure noise, bytes, saved states, a stop."""
    for name, (kind, case) in MISTAKES.items():
        broken = kind(ranks.rank, 2, ranks.group)
        values: list[Tensor] = []
        said = refused(lambda c=case, b=broken, v=values: v.append(trained(c, cache, b)))
        found[f"mistake: {name}"] = said or values[0]
    secure = Case("dp-sgd", privacy={"secure_noise": True})
    found["secure"] = [trained(secure, cache, ranks) for _ in range(2)]
    case, before = CASES["dense"], ranks.sent
    trained(case, cache, ranks)
    found["sent"] = ranks.sent - before
    run = prepared(CASES["micro-batches"], cache, ranks)
    steps = run.steps(Clock())
    next(steps), next(steps)
    found["saved"] = ranks.same(run.get_state)
    for _ in steps:
        pass
    found["never stopped"] = run.state.theta
    resumed = prepared(CASES["micro-batches"], cache, ranks)
    resumed.set_state(found["saved"])
    for _ in resumed.steps(Clock()):
        pass
    found["resumed"] = resumed.state.theta
    found["stopped"] = _stopped(ranks, cache)


def _stopped(ranks: Ranks, cache: Path) -> str:
    """Train until the second process is told to stop; return what each says."""
    from budgets import budget

    spec = CASES["shuffled"].spec
    checkpoint = Checkpoint(cache / "checkpoint", {}, float("inf"), first=ranks.first)
    left = [2]

    def due() -> bool:
        left[0] -= 1
        if left[0] == 0 and not ranks.first:
            checkpoint.stop.signal = "SIGTERM"
        return checkpoint.stop.signal is not None

    checkpoint.due = due  # type: ignore[method-assign]
    try:
        train(spec, cache=cache, calibration=budget(spec), checkpoint=checkpoint, ranks=ranks)
    except InterruptedRunError as error:
        return str(error)
    return ""


def audited(ranks: Ranks, cache: Path, quick: int) -> dict[str, str]:
    """Attack a method that two processes train, sound and with mistakes; return the verdicts."""
    broken = {"noise left out": NoNoise, "the same batch twice": SameShare}
    given = {"sound": Ranks, **broken}
    return {
        name: audit(
            subject("dp-sgd", ranks=kind(ranks.rank, ranks.count, ranks.group)),
            cache,
            Settings(runs=quick),
        ).verdict
        for name, kind in given.items()
    }


def _compute_own(ranks: Ranks, cache: Path, found: dict[str, Any]) -> None:
    """Add what three processes find that train in a loop of their own."""
    rank, draws = ranks.rank, torch.Generator().manual_seed(ranks.rank)
    inputs, targets = torch.randn(150, 6, generator=draws), torch.zeros(150, dtype=torch.long)
    wrong: dict[str, dict[str, Any]] = {
        "data": {"data": (inputs, targets)},
        "seed": {"seed": rank},
        "training": {"steps": 4 + rank},
        "method": {"learning_rate": 0.1 * (1 + rank)},
    }
    for name, settings in wrong.items():
        found[f"other {name}"] = refused(lambda s=settings: own_training(rank, **s))
    training = own_training(rank, seed=None)
    found["own, secret"] = (own_theta(training), training.statement)
    saving = own_training(rank)
    next(iter(saving))
    saving.save(cache / "own")
    going_on = own_training(rank)
    going_on.resume(cache / "own")
    found["own, resumed"] = own_theta(going_on)
    set_apart = own_training(rank)
    next(iter(set_apart))
    set_apart.set(learning_rate=0.1 * (1 + rank))
    found["own, set apart"] = refused(lambda: own_theta(set_apart))
