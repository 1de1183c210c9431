"""Figure 2, left, of DP-AdamBC: the learning-rate schedule that DP-Adam implies for DP-SGDM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from clipnoise.fields import STRICT, Count, Decay, Positive
from clipnoise.methods.base import Public
from clipnoise.methods.privatize_then_adapt.dp_sgdm import DPSGDM
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One curve or one value of the text: the noise and the rate of DP-Adam.

    Attributes:
        name: the published cell of its asymptote.
        printed_phi: Φ as the paper prints it, rounded; None where it prints none.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    expected_batch_size: Positive
    clip_norm: Positive
    noise_multiplier: Positive
    learning_rate: Positive
    printed_phi: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Figure2Left(Reproduction):
    """η_t = η(1−β)/((1−β^t)√Φ) from dp-sgdm with `schedule: adam-equivalent`, and its limit.

    Source: DP-AdamBC, equation 3, Figure 2 (left) and the learning rates named in the text.
    """

    id: ClassVar[str] = "dp-adambc/fig2-left"

    momentum: Decay
    steps: Count
    settings: tuple[Setting, ...]

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
                rounded = setting.learning_rate * (1 - self.momentum)
                quantities += [
                    Quantity(f"Φ, {setting.name}", phi, formula=setting.printed_phi),
                    Quantity(
                        f"{setting.name}, from the printed Φ",
                        rounded / math.sqrt(setting.printed_phi),
                        setting.name,
                    ),
                ]
        return Findings({"data": rows}, quantities)
