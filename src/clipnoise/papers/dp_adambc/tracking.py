"""DP-Adam against DP-SGDM with the schedule that it implies, trained on real digits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from clipnoise.fields import STRICT, Count, Decay, Positive
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row

Curve = dict[int, float]  # training loss by step
SCHEDULED = "dp-sgdm, schedule"
CELL = "mean squared difference of training losses"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One noise level and the learning rate of DP-Adam under it."""

    __pydantic_config__: ClassVar = STRICT

    noise_multiplier: Positive
    learning_rate: Positive


@dataclass(frozen=True, kw_only=True)
class Tracking(Reproduction):
    """Mean squared difference of the training losses of DP-Adam and DP-SGDM, by noise level.

    Runs of one seed share initial weights, batches and noise. DP-SGDM runs with the schedule of
    equation 3, at the constant rate that this schedule ends at, and at the constant rate of
    DP-Adam.

    Source: DP-AdamBC, section 3, Figure 2 (middle) and Figure 7.
    """

    id: ClassVar[str] = "dp-adambc/dp-adam-tracks-dp-sgdm"
    uses: ClassVar[tuple[str, ...]] = ("dp-adam", "dp-sgdm")

    model: str
    expected_batch_size: Count
    clip_norm: Positive
    steps: Count
    evaluations: Count
    momentum: Decay
    beta2: Decay
    noises: tuple[Noise, ...]
    seeds: tuple[int, ...]

    def run(self) -> Findings:
        from clipnoise.data.digits import Digits

        rows: list[Row] = []
        curves: list[Row] = []
        quantities: list[Quantity] = []
        with tempfile.TemporaryDirectory() as name:
            cache = Path(name)
            Digits().prepare(cache)
            for noise in self.noises:
                found = {
                    label: [self._train(cache, method, noise, seed) for seed in self.seeds]
                    for label, method in self._methods(noise)
                }
                key = {"noise_multiplier": noise.noise_multiplier}
                for label, runs in found.items():
                    for seed, curve in zip(self.seeds, runs, strict=True):
                        curves += [
                            {**key, "label": label, "seed": seed, "step": t, "loss": curve[t]}
                            for t in curve
                        ]
                reference = found.pop("dp-adam")
                for label, runs in found.items():
                    values = [
                        squared_difference(a, b) for a, b in zip(reference, runs, strict=True)
                    ]
                    rows += [
                        {**key, "label": label, "seed": seed, "difference": value}
                        for seed, value in zip(self.seeds, values, strict=True)
                    ]
                    quantities.append(
                        Quantity(
                            f"{CELL}, σ = {noise.noise_multiplier:g}, {label}",
                            sum(values) / len(values),
                            CELL if label == SCHEDULED else None,
                        )
                    )
        return Findings({"data": rows, "curves": curves}, quantities)

    def _methods(self, noise: Noise) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield label and method section of every run at one noise level."""
        eta, c = noise.learning_rate, self.clip_norm
        deviation = noise.noise_multiplier * c / self.expected_batch_size
        sgdm = {"id": "dp-sgdm", "clip_norm": c, "momentum": self.momentum}
        yield (
            "dp-adam",
            {
                "id": "dp-adam",
                "clip_norm": c,
                "learning_rate": eta,
                "betas": [self.momentum, self.beta2],
            },
        )
        yield SCHEDULED, {**sgdm, "learning_rate": eta, "schedule": "adam-equivalent"}
        final = eta * (1 - self.momentum) / deviation
        yield "dp-sgdm, its final rate", {**sgdm, "learning_rate": final}
        yield "dp-sgdm, rate of dp-adam", {**sgdm, "learning_rate": eta}

    def _train(self, cache: Path, method: dict[str, Any], noise: Noise, seed: int) -> Curve:
        """Train one run as every run of the suite is trained and return its training losses."""
        from clipnoise.privacy.calibration import Target, calibrate
        from clipnoise.run.spec import from_mapping
        from clipnoise.run.train import train

        spec = from_mapping(
            {
                "dataset": "digits",
                "model": self.model,
                "method": method,
                "privacy": {"noise_multiplier": noise.noise_multiplier},
                "training": {
                    "expected_batch_size": self.expected_batch_size,
                    "steps": self.steps,
                    "evaluations": self.evaluations,
                },
                "seed": seed,
            }
        )
        assert spec.delta is not None
        budget = Target(
            noise_multiplier=noise.noise_multiplier,
            delta=spec.delta,
            sampling_rate=spec.sampling_rate,
            steps=self.steps,
            evaluation_steps=tuple(spec.evaluation_steps()),
        )
        outcome = train(spec, cache=cache, calibration=calibrate(budget))
        return {row.step: row.train_loss for row in outcome.metrics}


def squared_difference(first: Curve, second: Curve) -> float:
    """Return the mean squared difference of two curves; infinite when one of them broke off."""
    if set(first) != set(second):
        return float("inf")
    return sum((first[t] - second[t]) ** 2 for t in first) / len(first)
