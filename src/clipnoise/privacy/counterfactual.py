"""What a run that is not private leaves out of a private one, to show what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clipnoise.fields import STRICT, Fraction


@dataclass(frozen=True, kw_only=True)
class Counterfactual:
    """The same run with less noise, or without clipping. It protects nothing.

    σ is calibrated as for the private run, and the method is told the noise that is really added.

    Attributes:
        noise: what the standard deviation of the noise is multiplied by. 0 leaves the noise out;
            0.1 is that of the mean of ten times as many examples a step, at the same σ, q and T.
        clipping: whether vectors are clipped; the noise stays that of the clip norm.
    """

    __pydantic_config__: ClassVar = STRICT

    noise: Fraction = 1.0
    clipping: bool = True

    def __post_init__(self) -> None:
        if self.noise == 1 and self.clipping:
            raise ValueError(
                "counterfactual changes nothing: give noise below 1 or clipping: false"
            )

    @property
    def words(self) -> str:
        """What is changed, in words: `without noise or clipping`."""
        left_out = [] if self.noise else ["noise"]
        left_out += [] if self.clipping else ["clipping"]
        words = [f"without {' or '.join(left_out)}"] if left_out else []
        words += [f"noise × {self.noise:g}"] if 0 < self.noise < 1 else []
        return ", ".join(words)
