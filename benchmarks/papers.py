"""Count the runs of all papers' artefacts and estimate their GPU hours, into papers.md.

Counts the multiply-adds of each model's forward pass on its data, twice as many for the backward
pass, and supposes a speed. Start-up, evaluation, noise and updates are not counted. Run it from the
repository: `make cost`, or `python benchmarks/papers.py --help`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from clipnoise.data.signature import Signature
from clipnoise.models.base import Model
from clipnoise.run.spec import RunSpec
from clipnoise.studies.plan import Plan

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """What a GPU is supposed to do.

    Attributes:
        operations: a second, multiplications and additions each counted.
        step: the least seconds that a step takes.
    """

    operations: float
    step: float


def main() -> int:
    """Count, then write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="paper", help="of the studies")
    parser.add_argument("--operations", type=float, default=2e13, help="of a GPU, a second")
    parser.add_argument("--step", type=float, default=0.01, help="least seconds of a step")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    plan = Plan.from_values({**config, "scale": arguments.scale}, ROOT / "workflow" / "studies")
    machine = Machine(arguments.operations, arguments.step)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "papers.md").write_text(page(plan, machine, arguments.scale))
    print(arguments.output / "papers.md")
    return 0


def page(plan: Plan, machine: Machine, scale: str) -> str:
    """Return the page: counts, and a table of models."""
    used: Counter[str] = Counter()
    runs: dict[str, RunSpec] = {}
    for artefact in plan.artefacts():
        mine = plan.study(artefact).specs
        runs.update(mine)
        used.update(mine.keys())
    shared = sum(count > 1 for count in used.values())
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    operations: dict[tuple[Model, Signature], float] = {}
    for spec in runs.values():
        key = (spec.model, spec.dataset.signature)
        if key not in operations:
            operations[key] = forward(*key)
        counts[spec.model.id] += 1
        seconds[spec.model.id] += training(spec, operations[key], machine)
    lines = [
        f"# What the papers' artefacts cost at scale {scale}",
        "",
        f"{len(runs):,} runs, tuning included; counted by artefact {used.total():,}; {shared:,} "
        f"serve several artefacts. About {seconds.total() / 3600:,.0f} GPU hours at "
        f"{machine.operations:g} operations a second and at least {1000 * machine.step:g} ms a "
        "step: operations of forward and backward passes alone, without start-up and evaluation.",
        "",
        "| model | runs | GPU hours |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {model} | {counts[model]:,} | {seconds[model] / 3600:,.1f} |"
        for model, _ in seconds.most_common()
    ]
    return "\n".join([*lines, ""])


def forward(model: Model, signature: Signature) -> float:
    """Return the operations of one example's forward pass, on a network without numbers."""
    if "pretrained" in {one.name for one in fields(model)}:
        model = replace(model, pretrained=False)  # type: ignore[call-arg]
    kind = torch.float32 if signature.vocabulary is None else torch.int64
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = model.build(signature, Path("weights"))
        network(torch.zeros(1, *signature.shape, dtype=kind))
    return float(counter.get_total_flops())


def training(spec: RunSpec, operations: float, machine: Machine) -> float:
    """Return the seconds that a run's passes take: forward, and backward at twice the price."""
    examples = float(spec.training.expected_batch_size)
    local = spec.method.local_training()
    if local is not None:
        examples *= local.epochs * spec.dataset.sizes()["train"] / spec.examples
    passes = 3 * operations * examples * spec.method.iterates()
    return spec.steps * max(machine.step, passes / machine.operations)


if __name__ == "__main__":
    raise SystemExit(main())
