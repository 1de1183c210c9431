"""Report on DP-Adam against DP-SGDM with the implied schedule."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.report.figures import canvas
from clipnoise.report.formats import significant
from clipnoise.report.reproductions.base import Data, Drawing, Report
from clipnoise.report.styles import Style, style

LOOKS: dict[str, Style] = {
    "dp-adam": style("dp-adam"),
    "dp-sgdm, schedule": style("dp-adambc"),
    "dp-sgdm, its final rate": style("dp-sgdm"),
    "dp-sgdm, rate of dp-adam": style("dp-sgd"),
}


class TrackingReport(Report):
    """Training losses side by side, by noise level."""

    id: ClassVar[str] = "dp-adambc/dp-adam-tracks-dp-sgdm"
    title: ClassVar[str] = "DP-Adam tracks DP-SGDM where the noise dominates"
    source: ClassVar[str] = "DP-AdamBC, section 3, equation 3 and Figure 2 (middle)"
    setup: ClassVar[tuple[str, ...]] = (
        "Logistic regression on the 1,300 private digits of scikit-learn, B = 64, C = 0.1, 600 "
        "steps, five seeds, four noise multipliers. DP-SGDM runs three times: with the schedule of "
        "equation 3; at the constant rate that the schedule ends at; and at DP-Adam's own rate. "
        "Runs of a seed share initial weights, batches and noise, and are trained like every run "
        "of the suite.",
        "The paper trains on SNLI, where 7.7 M parameters make the squared gradient of a "
        "coordinate small against Φ at σ = 0.4. Here there are 650 parameters, so that the same "
        "regime needs more noise.",
    )

    def drawings(self, data: Data) -> list[Drawing]:
        curves = data.table("curves")
        levels = list(curves.groupby("noise_multiplier"))
        figure, axes = canvas.sheet(1, len(levels), height=2.5, sharey=True)
        for ax, (sigma, own) in zip(axes.flat, levels, strict=True):
            for label, line in own.groupby("label", sort=False):
                look = LOOKS[str(label)]
                mean = line.groupby("step")["loss"].mean()
                ax.plot(mean.index, mean, color=look.colour, linestyle=look.line, label=str(label))
            ax.set(title=f"σ = {sigma:g}", xlabel="Step")
        axes[0, 0].set_ylabel("Training loss")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return [Drawing("Training loss", "Mean over five seeds.", figure)]

    def remarks(self, data: Data) -> list[str]:
        rows = data.table("data").groupby(["label", "noise_multiplier"])["difference"]
        mean, deviation = rows.mean(), rows.std()

        def say(label: str) -> str:
            return "; ".join(
                f"{significant(mean[label, sigma], 2)} ± {significant(deviation[label, sigma], 2)} "
                f"(σ = {sigma:g})"
                for sigma in mean[label].index
            )

        return [
            "Mean squared difference of the training losses to DP-Adam's, with the schedule: "
            f"{say('dp-sgdm, schedule')}. The paper reports 0.015 on SNLI.",
            f"Without the schedule, at DP-Adam's rate: {say('dp-sgdm, rate of dp-adam')}.",
            f"At the schedule's final rate: {say('dp-sgdm, its final rate')}.",
            "So the claim holds where the noise dominates: at the larger σ the curves of DP-Adam "
            "and of DP-SGDM with the schedule lie on each other. At σ = 0.4 the gradient is larger "
            "than the noise, √v̂ is larger than √Φ, and DP-SGDM with the schedule is ahead of "
            "DP-Adam. The published 0.015 is for another dataset and model: nothing forces ours to "
            "equal it.",
        ]
