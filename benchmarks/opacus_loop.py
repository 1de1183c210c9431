"""Train DP-SGD by a plain loop with Opacus, on tasks of the league, and compare the accuracies.

    python benchmarks/opacus_loop.py [--tasks digits …] [--epsilon 3] [--first 100000] [--again 3]

It reads the learning rate with its schedule, the clip norm and σ of each confirmed run of `dp-sgd`
from the published files of the league's tasks, and loads the same split. Everything else is Opacus:
the Poisson sampling, the per-example gradients, the clipping, the noise and the step. Initial
weights are PyTorch's own, and random streams differ. Twelve searches chose the hyper-parameters, so
the pair is a search: the interval is the 95% t-interval of the mean difference over searches.
Writes benchmarks/results/opacus.md, in which other tasks keep their lines at the same ε. With
`--again`, the suite trains as well, in place of its published runs: each run that many times, and
as often by Opacus. So a task whose interval misses 0 is compared with runs that did not show it.

    python benchmarks/opacus_loop.py --times [--repetitions 20]

It times the two programs of docs/own-loop.md instead, on networks of three sizes: DP-Adam by
`clipnoise.private`, and by Opacus' PrivacyEngine. They take turns of ten steps on one thread; the
time is that of the processor. Writes benchmarks/results/own-loop.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import clipnoise
from clipnoise.data.base import Examples
from clipnoise.fields import parse
from clipnoise.methods.base import method_class
from clipnoise.privacy.calibration import calibrate
from clipnoise.report.records import where
from clipnoise.run.provenance import hardware
from clipnoise.run.spec import RunSpec
from clipnoise.run.train import train
from clipnoise.studies.columns import LEAGUE, read_table
from clipnoise.studies.screening import CONFIRM
from clipnoise.studies.study import load_study

CACHE, WEIGHTS, STUDIES = Path("data"), Path("weights"), Path("workflow/studies/league")
PUBLISHED = Path("docs/league/v3")
PAGE = Path(__file__).parent / "results" / "opacus.md"
TIMES = PAGE.with_name("own-loop.md")
TURN = 10  # steps
HEAD = "| task | n | η | C | σ | here | Opacus | Opacus − here, 95% interval |"


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The examples of a split, one at a time, as a DataLoader takes them.

    Texts are padded to the same length: the suite pads each batch to its longest text.
    """

    def __init__(self, examples: Examples, length: int) -> None:
        self.examples, self.length = examples, length

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.examples.take(torch.tensor([index]))
        return nn.functional.pad(inputs[0], (0, self.length - inputs.shape[-1])), targets[0]


def main(words: Sequence[str] | None = None) -> None:
    """Train on every task and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", help="those published by default")
    parser.add_argument("--epsilon", type=float, default=3)
    parser.add_argument("--first", type=int, default=100_000, help="first seed of what is trained")
    parser.add_argument("--again", type=int, default=0, help="times that both train each run")
    parser.add_argument("--times", action="store_true", help="of steps, instead of accuracies")
    parser.add_argument("--repetitions", type=int, default=20, help="turns of ten steps, for times")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="opacus|torch")
    if given.times:
        TIMES.write_text(times_page(given.repetitions))
        print(TIMES.read_text())
        return
    page = PAGE.read_text() if PAGE.exists() else ""
    same = page.splitlines() if f"at ε = {given.epsilon:g}," in page else []
    lines = [line for line in same if line.startswith("| ") and line != HEAD]
    known = {line.split("|")[1].strip(): line for line in lines}
    for task in given.tasks or sorted(path.stem for path in PUBLISHED.glob("*.parquet")):
        name = f"{task}, {given.again} times again" if given.again else task
        known[name] = compared(task, name, given.epsilon, given.first, given.again)
        print(known[name], flush=True)
    rows = [known[task] for task in sorted(known)]
    rule = "|---|---:|---:|---:|---:|---:|---:|---:|"
    PAGE.write_text("\n".join([*introduction(given.epsilon), HEAD, rule, *rows, ""]))


def introduction(epsilon: float) -> list[str]:
    """Return what the page says before its table."""
    return [
        "# DP-SGD here and by a plain loop with Opacus",
        "",
        f"Test accuracy (%) at ε = {epsilon:g}, mean ± standard deviation over searches of each. "
        "The plain loop is `benchmarks/opacus_loop.py`; η, its schedule, C and σ are those of the "
        "league's confirmed runs. Tasks were compared one after the other, the last one on "
        f"{datetime.now(tz=UTC):%Y-%m-%d}, {hardware('cpu')['cpu']}, torch {torch.__version__}.",
        "",
    ]


def compared(task: str, name: str, epsilon: float, first: int, again: int) -> str:
    """Return the line of a task: accuracies of its confirmed runs, and of as many by Opacus.

    Args:
        task, name: whose runs, and what the line calls them.
        epsilon: of these runs.
        first: the first seed of what is trained.
        again: how often each run is trained by the suite, and by Opacus; 0 takes what is published.
    """
    study = load_study(STUDIES / f"{task}.yaml")
    runs = read_table(PUBLISHED / f"{task}.parquet", LEAGUE)
    found = where(runs, panel=CONFIRM, label="dp-sgd", epsilon=epsilon)
    one = next(
        run.spec
        for run in study.runs
        if (run.panel, run.label) == (CONFIRM, "dp-sgd")
        and run.spec.privacy
        and run.spec.privacy.epsilon == epsilon
    )
    made = [with_values(one, text) for text in found["hyperparameters"]]
    (sigma,) = set(found["noise_multiplier"])
    seeds = [[first + 1000 * r + i for r in range(again or 1)] for i in range(len(made))]
    theirs = [
        np.mean([trained(spec, sigma, seed) for seed in each])
        for spec, each in zip(made, seeds, strict=True)
    ]
    here = found["test_accuracy"].to_numpy()
    if again:
        here = np.array(trained_here(made, seeds))
    found = found.assign(
        here=100 * here,
        theirs=100 * np.array(theirs),
        learning_rate=[spec.method.at(1, spec.steps).learning_rate for spec in made],
        clip_norm=[spec.method.at(1, spec.steps).clip_norm for spec in made],
    )[["search", "here", "theirs", "learning_rate", "clip_norm"]]
    by_search = found.groupby("search").mean()
    interval = stats.ttest_rel(by_search["theirs"], by_search["here"]).confidence_interval(0.95)
    cells = [
        name,
        f"{len(made[0].dataset.load(CACHE).train):,}",
        *(f"{found[x].min():.3g} to {found[x].max():.3g}" for x in ("learning_rate", "clip_norm")),
        f"{sigma:.3f}",
        *(f"{by_search[x].mean():.2f} ± {by_search[x].std():.2f}" for x in ("here", "theirs")),
        f"{(by_search['theirs'] - by_search['here']).mean():+.2f} "
        f"[{interval.low:.2f}, {interval.high:.2f}]",
    ]
    return f"| {' | '.join(cells)} |"


def with_values(spec: RunSpec, text: str) -> RunSpec:
    """Return a run with the hyper-parameters of a published one, which are JSON."""
    values = json.loads(text)
    return replace(spec, method=parse(method_class(values.pop("id")), values, key=text))


def trained_here(specs: Sequence[RunSpec], seeds: Sequence[Sequence[int]]) -> list[float]:
    """Train each run by the suite once for each of its seeds, and return mean test accuracies."""
    budget = specs[0].budget
    assert budget is not None
    calibration = calibrate(budget)
    found = []
    for spec, each in zip(specs, seeds, strict=True):
        runs = [
            train(replace(spec, seed=seed), cache=CACHE, weights=WEIGHTS, calibration=calibration)
            for seed in each
        ]
        found.append(float(np.mean([run.metrics[-1].test_accuracy for run in runs])))
    return found


def trained(spec: RunSpec, sigma: float, seed: int) -> float:
    """Train by Opacus as its tutorials do, and return the test accuracy."""
    torch.manual_seed(seed)
    splits = spec.dataset.load(CACHE)
    network = GradSampleModule(spec.model.build(spec.dataset.signature, WEIGHTS))
    clip_norm = spec.method.at(1, spec.steps).clip_norm
    # Not PrivacyEngine, which rounds B and the sampling rate.
    rows = Rows(splits.train, spec.dataset.signature.shape[-1])
    loader = DPDataLoader(rows, sample_rate=spec.mechanism.sampling_rate)
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0),
        noise_multiplier=sigma,
        max_grad_norm=clip_norm,
        expected_batch_size=spec.training.expected_batch_size,
    )
    steps = 0
    while steps < spec.steps:
        for inputs, targets in loader:
            if steps == spec.steps:
                break
            (group,) = optimizer.param_groups
            group["lr"] = spec.method.at(steps + 1, spec.steps).learning_rate
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
            steps += 1
    return accuracy(network.eval(), splits.test)


@torch.no_grad()
def accuracy(network: nn.Module, examples: Examples) -> float:
    """Return the share of examples whose class has the largest output."""
    hits = 0
    for start in range(0, len(examples), 1000):
        inputs, targets = examples.take(slice(start, start + 1000))
        hits += int((network(inputs).argmax(dim=1) == targets).sum())
    return hits / len(examples)


def digits_network() -> nn.Module:
    """Return the network of docs/own-loop.md, for images of shape (1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def tutorial_network() -> nn.Module:
    """Return a network as in Opacus' tutorial on MNIST, for images of shape (1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def wide_network() -> nn.Module:
    """Return three dense layers, two of them wide, for images of shape (1, 28, 28)."""
    wide = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *wide, nn.Linear(512, 10))


def steps_here(
    network: nn.Module, data: TensorDataset, batch: int, seed: int | None = None
) -> Iterator[object]:
    """Take a step of DP-Adam by `clipnoise.private` for each item."""
    yield from clipnoise.private(
        network,
        nn.CrossEntropyLoss(reduction="none"),
        data,
        method="dp-adam",
        learning_rate=0.01,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
        steps=10**6,
        expected_batch_size=batch,
        seed=seed,
        device="cpu",
    )


def steps_with_a_seed(network: nn.Module, data: TensorDataset, batch: int) -> Iterator[object]:
    """Do as `steps_here` does, with noise from PyTorch's generator, as Opacus has it."""
    yield from steps_here(network, data, batch, seed=1)


def steps_by_opacus(network: nn.Module, data: TensorDataset, batch: int) -> Iterator[object]:
    """Take a step of DP-Adam by Opacus for each item."""
    optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    network, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=network,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            yield optimizer.step()


def steps_by_ghost_clipping(
    network: nn.Module, data: TensorDataset, batch: int
) -> Iterator[object]:
    """Take a step of DP-Adam by Opacus for each item, by ghost clipping."""
    optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    network, optimizer, criterion, loader = PrivacyEngine(accountant="rdp").make_private(
        module=network,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(network(inputs), targets).backward()
            yield optimizer.step()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "small CNN on 8×8 digits": (digits_network, (1, 8, 8), 1797, 128),
    "CNN of Opacus' tutorial, 28×28": (tutorial_network, (1, 28, 28), 10_000, 256),
    "dense, 784–512–512–10": (wide_network, (1, 28, 28), 10_000, 256),
}  # what builds it, the shape of an input, n and B
PROGRAMS = (steps_here, steps_with_a_seed, steps_by_opacus, steps_by_ghost_clipping)


def times_page(repetitions: int) -> str:
    """Return a page with the time of a step of each program."""
    lines = [
        "| network | parameters | batch | clipnoise | clipnoise, seed=1 | Opacus | Opacus, ghost |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    load = os.getloadavg()[0]
    for name, (build, shape, n, batch) in NETWORKS.items():
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(n, *shape), torch.randint(10, (n,)))
        running = [program(build(), data, batch) for program in PROGRAMS]
        medians = [f"{1e3 * np.median(row):.2f}" for row in turns(running, repetitions)]
        parameters = sum(p.numel() for p in build().parameters())
        lines.append(f"| {name} | {parameters:,} | {batch} | {' | '.join(medians)} |")
    head = [
        "# Time of a step in one's own loop",
        "",
        "Milliseconds of processor time for a step of DP-Adam, batches and noise included: the "
        f"median of {repetitions} turns of {TURN} steps, on one thread. `python "
        "benchmarks/opacus_loop.py --times` makes this page.",
        f"{datetime.now(tz=UTC):%Y-%m-%d}, {hardware('cpu')['cpu']}, load {load:.1f}, "
        f"torch {torch.__version__}.",
        "",
    ]
    return "\n".join([*head, *lines, ""])


def turns(running: Sequence[Iterator[object]], repetitions: int) -> list[list[float]]:
    """Return the processor seconds per step of each turn, by program."""
    seconds: list[list[float]] = [[] for _ in running]
    for turn in range(1 + repetitions):  # the first one warms up
        for row, steps in zip(seconds, running, strict=True):
            began = time.process_time()
            for _ in range(TURN):
                next(steps)
            if turn:
                row.append((time.process_time() - began) / TURN)
    return seconds


if __name__ == "__main__":
    main()
