"""By how much per-sample momentum reduces sampling noise; imported without what draws it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from clipnoise.errors import UserError
from clipnoise.lazy import np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SYMBOLS = {"beta": "β", "history": "k"}


def momentum_reduction(beta: float, history: int) -> float:
    """Return ρ, by which normalised per-sample momentum divides the deviation of sampling noise.

    ρ² = (1+β)(1−β^k) / ((1−β)(1+β^k)) = (Σ_j β^j)² / Σ_j β^{2j} for k independent gradients. It is
    computed as the ratio of sums, which also holds at β = 1, where it is k.

    Args:
        beta: β in [0, 1].
        history: k, at least 1.

    Source: DP-PMLF, Lemma 3.
    """
    powers = beta ** np.arange(history, dtype=float)
    return float(powers.sum() / np.sqrt(np.square(powers).sum()))


def draw_reduction(ax: Axes, runs: pd.DataFrame, over: str) -> None:
    """Draw ρ over β or k, a line per value of the other.

    Args:
        ax: the axes to draw into.
        runs: with their value of the hyper-parameter.
        over: `beta` or `history`.

    Raises:
        UserError: no method has both.
    """
    from clipnoise.report.figures import places, styles

    (other,) = SYMBOLS.keys() - {over}
    lines: dict[float, dict[str, float]] = {}
    for value, text in zip(runs["value"], runs["hyperparameters"], strict=True):
        options = json.loads(text)
        if SYMBOLS.keys() <= options.keys():
            rho = momentum_reduction(options["beta"], options["history"])
            lines.setdefault(options[other], {})[value] = rho
    if not lines:
        raise UserError("report: `rho` of a panel without a method with beta and history.")
    at = places.places(ax, list(dict.fromkeys(runs["value"])))
    for rank, (fixed, reductions) in enumerate(sorted(lines.items())):
        points = sorted((at[value], reduction) for value, reduction in reductions.items())
        look = styles.style(str(runs["method"].iloc[0]), rank)
        x, y = zip(*points, strict=True)
        ax.plot(x, y, **look.options)
        ax.annotate(
            f"{SYMBOLS[other]} = {fixed:g}",
            points[-1],
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    ax.grid(visible=False, axis="x")
    highest = max(max(reductions.values()) for reductions in lines.values())
    ax.set_ylim(1, 1 + 1.25 * max(highest - 1, 0.1))  # 1 is no momentum
    name = f"{over} {SYMBOLS[over]}"
    ax.set(title="Sampling noise is divided by ρ", xlabel=name, ylabel="ρ")
