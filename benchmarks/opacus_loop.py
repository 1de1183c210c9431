"""Train DP-SGD by a plain loop with Opacus, on tasks of the league, and compare the accuracies.

    python benchmarks/opacus_loop.py [--panels digits adult …] [--epsilon 3] [--seeds 10]

It reads the learning rate, the clip norm and σ of `dp-sgd` from the finished runs of the study
`league-lite` or `league` in `results`, and loads the same splits. Everything else is Opacus: the
Poisson sampling, the per-example gradients, the clipping, the noise and the step. Initial weights
are PyTorch's own. Random streams differ, so the results are compared as two samples: the 95% Welch
interval of the difference of their means. Writes benchmarks/results/opacus.md.
"""

from __future__ import annotations

import argparse
import platform
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset

from clipnoise.data.base import Examples
from clipnoise.run.results import run_folder
from clipnoise.run.spec import RunSpec, read_spec
from clipnoise.studies.study import load_study

RESULTS, CACHE, STUDIES = Path("results"), Path("data"), Path("workflow/studies")
PAGE = Path(__file__).parent / "results" / "opacus.md"
HEAD = "| panel | n | η | C | σ | here | Opacus | Opacus − here, 95% interval |"


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The examples of a split, one at a time, as a DataLoader takes them."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.examples.take(torch.tensor([index]))
        return inputs[0], targets[0]


def main(words: Sequence[str] | None = None) -> None:
    """Train every panel and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", default="league")
    parser.add_argument("--panels", nargs="+", help="all panels without a suffix by default")
    parser.add_argument("--epsilon", type=float, default=3)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="opacus|torch")
    study = load_study(STUDIES / f"{given.study}.yaml")
    lines = [HEAD, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for panel in given.panels or [name for name in study.panels if "-" not in name]:
        chosen = [
            run.spec
            for run in study.runs
            if (run.panel, run.label) == (panel, "dp-sgd")
            and run.spec.privacy
            and run.spec.privacy.epsilon == given.epsilon
        ]
        lines.append(compared(panel, chosen[: given.seeds]))
        print(lines[-1], flush=True)
    PAGE.write_text("\n".join([*introduction(given.epsilon, given.seeds), *lines, ""]))


def introduction(epsilon: float, seeds: int) -> list[str]:
    """Return what the page says before its table."""
    return [
        "# DP-SGD here and by a plain loop with Opacus",
        "",
        f"Test accuracy (%) at ε = {epsilon:g}, mean ± standard deviation over {seeds} seeds of "
        "each. The plain loop is `benchmarks/opacus_loop.py`; η, C and σ are the league's.",
        f"{datetime.now(tz=UTC):%Y-%m-%d}, {platform.machine()}, torch {torch.__version__}.",
        "",
    ]


def compared(panel: str, specs: Sequence[RunSpec]) -> str:
    """Return the line of a panel: accuracies of the finished runs, and of as many by Opacus."""
    summaries = [
        pd.read_json(run_folder(RESULTS, spec) / "summary.json", typ="series") for spec in specs
    ]
    made = read_spec(run_folder(RESULTS, specs[0]) / "spec.yaml")
    sigma = summaries[0]["privacy"]["noise_multiplier"]
    here = [100 * summary["final"]["test_accuracy"] for summary in summaries]
    theirs = [100 * trained(made, sigma, 1000 + seed) for seed in range(len(specs))]
    interval = stats.ttest_ind(theirs, here, equal_var=False).confidence_interval(0.95)
    middle = np.mean(theirs) - np.mean(here)
    method = made.method
    cells = [
        panel,
        f"{made.examples:,}",
        *(f"{getattr(method, name):g}" for name in ("learning_rate", "clip_norm")),
        f"{sigma:.3f}",
        *(f"{np.mean(one):.2f} ± {np.std(one, ddof=1):.2f}" for one in (here, theirs)),
        f"{middle:+.2f} [{interval.low:.2f}, {interval.high:.2f}]",
    ]
    return f"| {' | '.join(cells)} |"


def trained(spec: RunSpec, sigma: float, seed: int) -> float:
    """Train by Opacus as its tutorials do, and return the test accuracy."""
    torch.manual_seed(seed)
    splits = spec.dataset.load(CACHE)
    network = GradSampleModule(spec.model.build(spec.dataset.signature, Path("weights")))
    method = spec.method
    rate, clip_norm = (float(getattr(method, name)) for name in ("learning_rate", "clip_norm"))
    # Not PrivacyEngine, which rounds B and the sampling rate.
    loader = DPDataLoader(Rows(splits.train), sample_rate=spec.sampling_rate)
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=rate),
        noise_multiplier=sigma,
        max_grad_norm=clip_norm,
        expected_batch_size=spec.training.expected_batch_size,
    )
    steps = 0
    while steps < spec.steps:
        for inputs, targets in loader:
            if steps == spec.steps:
                break
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


if __name__ == "__main__":
    main()
