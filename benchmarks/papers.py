"""Count the runs of all papers' artefacts and estimate their GPU hours, into papers.md.

It counts the operations of each model's forward pass on its data, takes the backward pass as twice
as many, and assumes a speed. Start-up, evaluation, noise and updates are not counted. Run it from
the repository: `make cost`, or `python benchmarks/papers.py --help`.
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
class GPUSpeed:
    """The assumed speed of a GPU.

    Attributes:
        operations: operations per second; a multiplication and an addition count as two.
        step: minimum seconds per step.
    """

    operations: float
    step: float


def main() -> int:
    """Count the runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="paper", help="scale of the studies")
    parser.add_argument(
        "--operations", type=float, default=2e13, help="operations per second of a GPU"
    )
    parser.add_argument("--step", type=float, default=0.01, help="minimum seconds per step")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    plan = Plan.from_values({**config, "scale": arguments.scale}, ROOT / "workflow" / "studies")
    speed = GPUSpeed(arguments.operations, arguments.step)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "papers.md").write_text(page(plan, speed, arguments.scale))
    print(arguments.output / "papers.md")
    return 0


def page(plan: Plan, speed: GPUSpeed, scale: str) -> str:
    """Return the page: counts, and a table of models."""
    used: Counter[str] = Counter()
    runs: dict[str, RunSpec] = {}
    for artefact in plan.paper_studies:
        specs = plan.study(artefact).specs
        runs.update(specs)
        used.update(specs.keys())
    shared = sum(count > 1 for count in used.values())
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    operations: dict[tuple[Model, Signature], float] = {}
    for spec in runs.values():
        key = (spec.model, spec.dataset.signature)
        if key not in operations:
            operations[key] = forward(*key)
        counts[spec.model.id] += 1
        seconds[spec.model.id] += training(spec, operations[key], speed)
    lines = [
        f"# What the papers' artefacts cost at scale {scale}",
        "",
        f"{len(runs):,} runs, including tuning. The artefacts need {used.total():,} runs in all; "
        f"{shared:,} runs serve several artefacts. About {seconds.total() / 3600:,.0f} GPU hours "
        f"at {speed.operations:g} operations per second and at least {1000 * speed.step:g} ms per "
        "step, for forward and backward passes alone, without start-up and evaluation.",
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
    """Return the operations of one example's forward pass, counted without any computation."""
    if "pretrained" in {field.name for field in fields(model)}:
        model = replace(model, pretrained=False)  # type: ignore[call-arg]
    kind = torch.float32 if signature.vocabulary is None else torch.int64
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = model.build(signature, Path("weights"))
        network(torch.zeros(1, *signature.shape, dtype=kind))
    return float(counter.get_total_flops())


def training(spec: RunSpec, operations: float, speed: GPUSpeed) -> float:
    """Return the seconds that a run's forward and backward passes take."""
    examples = float(spec.training.expected_batch_size)
    local = spec.method.local_training()
    if local is not None:
        examples *= local.epochs * spec.dataset.sizes()["train"] / spec.examples
    # A backward pass costs about as much as two forward passes.
    passes = 3 * operations * examples * spec.method.iterates()
    return spec.steps * max(speed.step, passes / speed.operations)


if __name__ == "__main__":
    raise SystemExit(main())
