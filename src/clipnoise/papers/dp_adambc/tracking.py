"""Figure 2, middle, of DP-AdamBC: DP-Adam against DP-SGDM with the schedule that it implies."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipnoise.fields import Count, Decay, Positive
from clipnoise.papers.base import (
    Drawing,
    Experiment,
    Findings,
    Quantity,
    QuantityClaim,
    Results,
    Row,
    Section,
)
from clipnoise.papers.report import draw_line, panels, shared_legend
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import significant

Curve = dict[int, float]  # training loss by step
REFERENCE = "dp-adam"
SCHEDULED = "dp-sgdm, schedule"
CELL = "mean squared difference of training losses"
LOOKS = {  # methods whose line each run is drawn with
    REFERENCE: "dp-adam",
    SCHEDULED: "dp-adambc",
    "dp-sgdm, its final rate": "dp-sgdm",
    "dp-sgdm, rate of dp-adam": "dp-sgd",
}


@dataclass(frozen=True, kw_only=True)
class NoiseLevel(Section):
    """A noise multiplier and the learning rate of DP-Adam at it."""

    noise_multiplier: Positive
    learning_rate: Positive


@dataclass(frozen=True, kw_only=True)
class ScheduleTracking(Experiment):
    """Mean squared difference of the training losses of DP-Adam and DP-SGDM, by noise level.

    Runs with the same seed share initial weights, batches and noise. DP-SGDM runs with the schedule
    of equation 3, at the constant rate that this schedule ends at, and at the constant rate of
    DP-Adam.

    Source: DP-AdamBC, section 3, Figure 2 (middle) and Figure 7.
    """

    id = "dp-adambc/dp-adam-tracks-dp-sgdm"
    uses = ("dp-adam", "dp-sgdm")
    title = "DP-Adam tracks DP-SGDM where the noise dominates"
    source = "DP-AdamBC, section 3, equation 3 and Figure 2 (middle)"
    setup = (
        "Logistic regression on the 1,300 private digits of scikit-learn, B = 64, C = 0.1, 600 "
        "steps, five seeds, four noise multipliers. DP-SGDM runs three times: with the schedule of "
        "equation 3, at the constant rate that the schedule ends at, and at the rate of DP-Adam. "
        "Runs with the same seed share initial weights, batches and noise. All are trained like "
        "every other run of the suite.",
        "The paper trains on SNLI, where 7.7 M parameters make the squared gradient of a "
        "coordinate small against Φ at σ = 0.4. Here there are 650 parameters, so the same regime "
        "needs more noise.",
    )
    claims = (
        QuantityClaim(
            "DP-Adam and DP-SGDM with its schedule train almost identically: a mean squared "
            "difference of about 0.015 (shown: where noise dominates most).",
            "section 3",
            f"{CELL}, σ = 16, {SCHEDULED}",
            bounds=(-math.inf, 0.015),
        ),
    )

    model: str
    expected_batch_size: Count
    clip_norm: Positive
    steps: Count
    evaluations: Count
    momentum: Decay
    beta2: Decay
    noises: tuple[NoiseLevel, ...]
    seeds: tuple[int, ...]

    def run(self) -> Findings:
        from clipnoise.data.digits import Digits

        rows: list[Row] = []
        curves: list[Row] = []
        quantities: list[Quantity] = []
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            Digits().prepare(cache)
            for noise in self.noises:
                runs = {
                    label: [self._train(cache, method, noise, seed) for seed in self.seeds]
                    for label, method in self._methods(noise)
                }
                sigma = noise.noise_multiplier
                for label, losses in runs.items():
                    keys = [
                        {"noise_multiplier": sigma, "label": label, "seed": seed}
                        for seed in self.seeds
                    ]
                    for key, curve in zip(keys, losses, strict=True):
                        curves += [{**key, "step": t, "loss": curve[t]} for t in curve]
                    if label == REFERENCE:
                        continue
                    values = list(map(squared_difference, runs[REFERENCE], losses))
                    rows += [{**k, "difference": x} for k, x in zip(keys, values, strict=True)]
                    name = f"{CELL}, σ = {sigma:g}, {label}"
                    cell = CELL if label == SCHEDULED else None
                    quantities.append(Quantity(name, sum(values) / len(values), cell))
        return Findings({"data": rows, "curves": curves}, quantities)

    def _methods(self, noise: NoiseLevel) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield label and method section of every run at one noise level."""
        eta, c = noise.learning_rate, self.clip_norm
        deviation = noise.noise_multiplier * c / self.expected_batch_size
        betas = [self.momentum, self.beta2]
        sgdm = {"id": "dp-sgdm", "clip_norm": c, "momentum": self.momentum}
        yield REFERENCE, {"id": "dp-adam", "clip_norm": c, "learning_rate": eta, "betas": betas}
        yield SCHEDULED, {**sgdm, "learning_rate": eta, "schedule": "adam-equivalent"}
        final = eta * (1 - self.momentum) / deviation
        yield "dp-sgdm, its final rate", {**sgdm, "learning_rate": final}
        yield "dp-sgdm, rate of dp-adam", {**sgdm, "learning_rate": eta}

    def _train(self, cache: Path, method: dict[str, Any], noise: NoiseLevel, seed: int) -> Curve:
        """Train one run as every run of the suite is trained and return its training losses."""
        from clipnoise.privacy.calibration import calibrate
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
        assert spec.budget is not None
        outcome = train(spec, cache=cache, calibration=calibrate(spec.budget))
        return {row.step: row.train_loss for row in outcome.metrics}

    @staticmethod
    def figures(results: Results) -> list[Drawing]:
        curves = results.table("curves").sort_values("noise_multiplier", kind="stable")
        figure, drawn = panels(curves, "noise_multiplier", height=2.5, sharey=True)
        for ax, sigma, rows in drawn:
            for label, runs in rows.groupby("label", sort=False):
                mean = runs.groupby("step")["loss"].mean()
                draw_line(ax, mean.index, mean, style(LOOKS[str(label)]), label)
            ax.set(title=f"σ = {sigma:g}", xlabel="Step")
        drawn[0][0].set_ylabel("Training loss")
        shared_legend(figure, drawn[0][0], columns=2)
        return [Drawing("Training loss", "Mean over five seeds.", figure)]

    @staticmethod
    def remarks(results: Results) -> list[str]:
        rows = results.table("data").groupby(["label", "noise_multiplier"])["difference"]
        mean, deviation = rows.mean(), rows.std()

        def levels(label: str) -> str:
            return "; ".join(
                f"{significant(mean[label, sigma], 2)} ± {significant(deviation[label, sigma], 2)} "
                f"(σ = {sigma:g})"
                for sigma in mean[label].index
            )

        return [
            "Mean squared difference from the training losses of DP-Adam, with the schedule: "
            f"{levels(SCHEDULED)}. The paper reports 0.015 on SNLI.",
            f"Without the schedule, at the rate of DP-Adam: {levels('dp-sgdm, rate of dp-adam')}.",
            f"At the final rate of the schedule: {levels('dp-sgdm, its final rate')}.",
            "The claim holds where the noise dominates: at the larger σ the curves of DP-Adam and "
            "of DP-SGDM with the schedule coincide. At σ = 0.4 the gradient is larger than the "
            "noise, so √v̂ is larger than √Φ, and DP-SGDM with the schedule is ahead of DP-Adam. "
            "The published 0.015 was measured on another dataset and model; there is no reason "
            "for ours to equal it.",
        ]


def squared_difference(first: Curve, second: Curve) -> float:
    """Return the mean squared difference of two curves; infinite when one of them broke off."""
    if set(first) != set(second):
        return float("inf")
    return sum((first[t] - second[t]) ** 2 for t in first) / len(first)
