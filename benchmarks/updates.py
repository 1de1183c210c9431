"""Measure what each method's step takes beside its gradients, on a network of a million parameters.

    python benchmarks/updates.py
    python benchmarks/updates.py --only dp-muon dp-lssgd

A step of few examples is little but noise and update. It is that of the real training loop,
relative to a step of dp-sgd that is taken in turn with it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from clipnoise.audit.subject import run_spec, subject
from clipnoise.data.base import dataset_class
from clipnoise.methods.base import methods
from clipnoise.models.base import model_class
from clipnoise.run.provenance import hardware
from clipnoise.run.train import Run

WIDTHS, EXAMPLES = (1000, 1000), 4
BASELINE = "dp-sgd"
PAGE = """\
# What methods take beside gradients

Processor time of a whole step, relative to one of `dp-sgd` that is taken in turn with it: the \
median of {steps} steps of {examples} examples each, in one process of one thread. The network is \
`mlp` with {parameters:,} parameters on digits, or for both what a method is made for. Passes over \
the {examples} examples are part of it: a method that takes several gradients of an example takes \
that much longer here as well. Hyper-parameters are those of the audits. \
`python benchmarks/updates.py` makes this page. Measured on {machine}.

| method | parameters | time of a step |
|---|---:|---:|
{rows}
"""


def main() -> int:
    """Measure and write updates.md."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=sorted(methods()), metavar="METHOD")
    parser.add_argument("--steps", type=int, default=7, help="Timed steps of each method.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, given.steps, Path(folder)) for name in given.only or methods()}
    rows = [
        f"| {name} | {parameters:,} | {ratio:.2f} |"
        for name, (parameters, ratio) in sorted(found.items(), key=lambda item: item[1][1])
    ]
    page = PAGE.format(
        steps=given.steps,
        examples=EXAMPLES,
        parameters=max(parameters for parameters, _ in found.values()),
        machine=hardware("cpu")["cpu"],
        rows="\n".join(rows),
    )
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "updates.md").write_text(page)
    print(page)
    return 0


def measure(name: str, steps: int, cache: Path) -> tuple[int, float]:
    """Return the number of parameters, and the time of a step relative to dp-sgd."""
    made_for = methods()[name].made_for
    runs = [prepared(one, made_for, steps, cache) for one in (name, BASELINE)]
    times = [[seconds(run) for run in runs] for _ in range(steps + 1)][1:]
    own, baseline = (statistics.median(column) for column in zip(*times, strict=True))
    return runs[0].state.theta.numel(), own / baseline


def prepared(name: str, made_for: str | None, steps: int, cache: Path) -> Run:
    """Return a run of a method on the network of another, or on the large one."""
    spec = run_spec(subject(name), expected_batch_size=EXAMPLES, steps=steps + 1)
    model = model_class("mlp")(widths=WIDTHS) if made_for is None else model_class(made_for)()
    spec = replace(spec, model=model)
    dataset_class(spec.dataset.id)().prepare(cache)
    return Run.prepare(spec, cache, "cpu", noise_multiplier=1.0)


def seconds(run: Run) -> float:
    """Take a step and return its processor time."""
    batch = run.sampler.sample()
    start = time.process_time()
    run.step(batch)
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
