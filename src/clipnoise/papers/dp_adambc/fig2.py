"""Figure 2 of DP-AdamBC: the schedule that DP-Adam implies for DP-SGDM, and runs of both."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clipnoise.core.state import Public
from clipnoise.fields import Count, Decay, Positive
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGDM
from clipnoise.papers.base import (
    Experiment,
    Findings,
    Image,
    Quantity,
    QuantityClaim,
    Results,
    Row,
    Section,
)
from clipnoise.papers.report import draw_line, logarithmic, panels, shared_legend
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import significant

ASYMPTOTES = {"asymptote, small Φ": "dp-adambc", "asymptote, large Φ": "dp-adam"}

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
class ScheduleSetting(Section):
    """The noise and the learning rate of DP-Adam behind one curve or one number of the text."""

    name: str  # the published cell of its asymptote
    expected_batch_size: Positive
    clip_norm: Positive
    noise_multiplier: Positive
    learning_rate: Positive
    printed_phi: Positive | None = None  # Φ as the paper prints it, rounded


@dataclass(frozen=True, kw_only=True)
class ImpliedSchedule(Experiment):
    """η_t = η(1−β)/((1−β^t)√Φ) from dp-sgdm with `schedule: adam-equivalent`, and its limit."""

    id = "dp-adambc/fig2-left"
    title = "The schedule that DP-Adam implies: Figure 2, left"
    source = "DP-AdamBC, equation 3 and Figure 2 (left)"
    setup = (
        "Where the noise dominates the second moment, DP-Adam takes the steps of DP-SGDM with "
        "η_t = η(1 − β)/((1 − β^t)√Φ), Φ = (σC/B)². The values come from dp-sgdm with "
        "schedule: adam-equivalent, the same code that trains.",
    )

    momentum: Decay
    steps: Count
    settings: tuple[ScheduleSetting, ...]

    def run(self) -> Findings:
        rows: list[Row] = []
        quantities: list[Quantity] = []
        for setting in self.settings:
            method = DPSGDM(
                learning_rate=setting.learning_rate,
                clip_norm=setting.clip_norm,
                momentum=self.momentum,
                schedule="adam-equivalent",
            )
            public = Public(
                noise_multiplier=setting.noise_multiplier,
                expected_batch_size=setting.expected_batch_size,
                total_steps=self.steps,
            )
            phi = public.noise_variance(setting.clip_norm)
            for t in range(1, self.steps + 1):
                rate = method.rate(t, public)
                rows.append({"setting": setting.name, "phi": phi, "step": t, "rate": rate})
            quantities.append(Quantity(setting.name, method.rate(100_000, public)))
            if setting.printed_phi is not None:
                limit = setting.learning_rate * (1 - self.momentum) / math.sqrt(setting.printed_phi)
                quantities.append(Quantity(f"Φ, {setting.name}", phi, formula=setting.printed_phi))
                name = f"{setting.name}, from the printed Φ"
                quantities.append(Quantity(name, limit, setting.name))
        return Findings({"data": rows}, quantities)

    @staticmethod
    def figures(results: Results) -> list[Image]:
        from clipnoise.report.figures import canvas

        table = results.table("data")
        figure, axes = canvas.sheet(1, 2, height=2.3)
        for ax, (name, look) in zip(axes.flat, ASYMPTOTES.items(), strict=True):
            curve = table[table["setting"] == name]
            ax.plot(curve["step"], curve["rate"], color=style(look).colour, label="equation 3")
            line = {"color": canvas.PALE, "linestyle": ":", "label": "published asymptote"}
            ax.axhline(results.published(name), **line)
            ax.set(title=name.removeprefix("asymptote, "), xlabel="Step t")
            logarithmic(ax, "y")
            ax.legend()
        axes[0, 0].set_ylabel("Learning rate of DP-SGDM")
        caption = "η = 0.001 and β = 0.9, for the two Φ of the paper."
        return [("Implied learning rate", caption, figure)]

    @staticmethod
    def remarks(results: Results) -> list[str]:
        text = results.text
        return [
            "Both published asymptotes follow from the rounded Φ that the paper prints: "
            f"0.0001/√2.4e-8 = {text('asymptote, small Φ, from the printed Φ')}. With Φ "
            f"unrounded they are {text('asymptote, small Φ')} and "
            f"{text('asymptote, large Φ')}.",
            "Section 3 names η = 0.001 for the SNLI run and a rate of 6.4 for DP-SGDM, but "
            f"equation 3 gives {text('SNLI in section 3, η = 0.001')} at that η. Appendix D "
            "names η = 0.01 for the same run, and then 6.4 is exact: the η in section 3 is wrong.",
            "Both rates of appendix D for CIFAR-10 are reproduced exactly.",
        ]


@dataclass(frozen=True, kw_only=True)
class NoiseLevel(Section):
    """A noise multiplier and the learning rate of DP-Adam at it."""

    noise_multiplier: Positive
    learning_rate: Positive


@dataclass(frozen=True, kw_only=True)
class ScheduleTracking(Experiment):
    """Mean squared difference of the training losses of DP-Adam and DP-SGDM, by noise level."""

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
                    differences = list(map(squared_difference, runs[REFERENCE], losses))
                    for seed, curve, value in zip(self.seeds, losses, differences, strict=True):
                        key = {"noise_multiplier": sigma, "label": label, "seed": seed}
                        curves += [{**key, "step": t, "loss": curve[t]} for t in curve]
                        if label != REFERENCE:
                            rows.append({**key, "difference": value})
                    if label != REFERENCE:
                        mean = sum(differences) / len(differences)
                        cell = CELL if label == SCHEDULED else None
                        quantities.append(Quantity(f"{CELL}, σ = {sigma:g}, {label}", mean, cell))
        return Findings({"data": rows, "curves": curves}, quantities)

    def _methods(self, noise: NoiseLevel) -> Iterator[tuple[str, dict[str, object]]]:
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

    def _train(self, cache: Path, method: dict[str, object], noise: NoiseLevel, seed: int) -> Curve:
        """Train one run as every run of the suite is trained and return its training losses."""
        from clipnoise.privacy.calibration import calibrate
        from clipnoise.run.spec import from_mapping
        from clipnoise.run.train import train

        length = {"steps": self.steps, "evaluations": self.evaluations}
        training = {"expected_batch_size": self.expected_batch_size, **length}
        privacy = {"noise_multiplier": noise.noise_multiplier}
        what = {"dataset": "digits", "model": self.model, "method": method, "seed": seed}
        spec = from_mapping({**what, "privacy": privacy, "training": training})
        assert spec.budget is not None
        outcome = train(spec, cache=cache, calibration=calibrate(spec.budget))
        return {row.step: row.train_loss for row in outcome.metrics}

    @staticmethod
    def figures(results: Results) -> list[Image]:
        curves = results.table("curves").sort_values("noise_multiplier", kind="stable")
        figure, drawn = panels(curves, "noise_multiplier", height=2.5, sharey=True)
        for ax, sigma, rows in drawn:
            for label, runs in rows.groupby("label", sort=False):
                mean = runs.groupby("step")["loss"].mean()
                draw_line(ax, mean.index, mean, style(LOOKS[str(label)]), label)
            ax.set(title=f"σ = {sigma:g}", xlabel="Step")
        drawn[0][0].set_ylabel("Training loss")
        shared_legend(figure, drawn[0][0], columns=2)
        return [("Training loss", "Mean over five seeds.", figure)]

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
