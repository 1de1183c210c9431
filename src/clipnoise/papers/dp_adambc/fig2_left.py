"""Figure 2, left, of DP-AdamBC: the learning-rate schedule that DP-Adam implies for DP-SGDM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clipnoise.core.state import Public
from clipnoise.fields import Count, Decay, Positive
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGDM
from clipnoise.papers.base import Drawing, Experiment, Findings, Quantity, Results, Row, Section
from clipnoise.papers.report import logarithmic
from clipnoise.report.figures.styles import style

CURVES = {"asymptote, small Φ": "dp-adambc", "asymptote, large Φ": "dp-adam"}


@dataclass(frozen=True, kw_only=True)
class ScheduleSetting(Section):
    """The noise and the learning rate of DP-Adam behind one curve or one number of the text.

    Attributes:
        name: the published cell of its asymptote.
        printed_phi: Φ as the paper prints it, rounded; None where it prints none.
    """

    name: str
    expected_batch_size: Positive
    clip_norm: Positive
    noise_multiplier: Positive
    learning_rate: Positive
    printed_phi: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class ImpliedSchedule(Experiment):
    """η_t = η(1−β)/((1−β^t)√Φ) from dp-sgdm with `schedule: adam-equivalent`, and its limit.

    Source: DP-AdamBC, equation 3, Figure 2 (left) and the learning rates named in the text.
    """

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
            rows += [
                {"setting": setting.name, "phi": phi, "step": t, "rate": method.rate(t, public)}
                for t in range(1, self.steps + 1)
            ]
            quantities.append(Quantity(setting.name, method.rate(100_000, public)))
            if setting.printed_phi is not None:
                limit = setting.learning_rate * (1 - self.momentum) / math.sqrt(setting.printed_phi)
                quantities += [
                    Quantity(f"Φ, {setting.name}", phi, formula=setting.printed_phi),
                    Quantity(f"{setting.name}, from the printed Φ", limit, setting.name),
                ]
        return Findings({"data": rows}, quantities)

    @staticmethod
    def figures(results: Results) -> list[Drawing]:
        from clipnoise.report.figures import canvas

        table = results.table("data")
        figure, axes = canvas.sheet(1, 2, height=2.3)
        for ax, (name, look) in zip(axes.flat, CURVES.items(), strict=True):
            curve = table[table["setting"] == name]
            ax.plot(curve["step"], curve["rate"], color=style(look).colour, label="equation 3")
            line = {"color": canvas.PALE, "linestyle": ":", "label": "published asymptote"}
            ax.axhline(results.published(name), **line)
            ax.set(title=name.removeprefix("asymptote, "), xlabel="Step t")
            logarithmic(ax, "y")
            ax.legend()
        axes[0, 0].set_ylabel("Learning rate of DP-SGDM")
        caption = "η = 0.001 and β = 0.9, for the two Φ of the paper."
        return [Drawing("Implied learning rate", caption, figure)]

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
