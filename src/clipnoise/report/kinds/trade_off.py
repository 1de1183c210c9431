"""Trade-off curves: what attacks can reach at each false positive rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.lazy import np
from clipnoise.privacy.profile import PrivacyProfile, rounded_up
from clipnoise.report.figures import canvas, styles
from clipnoise.report.formats import budget, listing
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.tracking.view import ADJACENCY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.figures.canvas import LegendEntry
    from clipnoise.report.figures.styles import Style

LEAST, POINTS = 1e-6, 200  # the smallest false positive rate, and of how many a curve is drawn
MARKS = 25  # points from one marker to the next


@dataclass(frozen=True, kw_only=True)
class TradeOff(FigureItem):
    """The true positive rate that no attack exceeds at each false positive rate, a line for each
    mechanism of the private runs, with μ of Gaussian differential privacy.
    """

    kind: Literal["trade-off"] = "trade-off"
    heading: ClassVar = "What attacks can reach"

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset, with the diagonal of random guesses."""
        runs = data.runs[[one is not None and bool(one.epsilons) for one in data.runs["profile"]]]
        if runs.empty:
            return canvas.blank("no private run with a privacy profile")
        several = runs["dataset"].nunique() > 1
        entries: list[LegendEntry] = []
        figure, subplots = canvas.grid(canvas.groups(runs, "dataset"), 2, height=2.9)
        for ax, shown in subplots:
            for text, profile in _mechanisms(shown):
                title = f"{shown['dataset'].iloc[0]}: {text}" if several else text
                entries.append(canvas.LegendEntry(title, _look(len(entries))))
                _curve(ax, profile, entries[-1].style)
            _axes(ax)
        canvas.legend(figure, entries)
        return figure


def _mechanisms(runs: pd.DataFrame) -> Iterator[tuple[str, PrivacyProfile]]:
    """Yield the profile of each mechanism with its name, the methods where ε is not enough."""
    place = ["budget", "claim", "adjacency"]
    for (asked, claim, adjacency), same in runs.groupby(place, sort=False):
        profiles = dict.fromkeys(same["profile"])
        for profile in profiles:
            words = [budget(str(asked))]
            if len(profiles) > 1:
                labels = same["label"][[one == profile for one in same["profile"]]]
                words.append(listing(list(labels.drop_duplicates())))
            words += ["nominal"] if claim == "nominal" else []
            words += [f"{adjacency} adjacency"] if adjacency != ADJACENCY else []
            words += [f"μ = {rounded_up(profile.mu)}"] if profile.mu is not None else []
            yield ", ".join(words), profile


def _look(number: int) -> Style:
    return styles.Style(
        styles.COLOURS[number % len(styles.COLOURS)],
        styles.MARKERS[number % len(styles.MARKERS)],
        styles.DASHES[number % len(styles.DASHES)],
    )


def _curve(ax: Axes, profile: PrivacyProfile, look: Style) -> None:
    false = np.geomspace(LEAST, 1, POINTS)
    true = [profile.true_positive_rate(float(rate)) for rate in false]
    ax.plot(false, true, **look.options, markersize=4, markevery=MARKS)


def _axes(ax: Axes) -> None:
    guess = np.geomspace(LEAST, 1, POINTS)
    ax.plot(guess, guess, color=canvas.PALE, linewidth=0.8, zorder=0)
    ax.annotate(
        "random guess", (0.2, 0.2), (4, -4), textcoords="offset points", va="top", fontsize=7
    )
    ax.set(xscale="log", xlim=(LEAST, 1), ylim=(0, 1))
    canvas.powers(ax.xaxis)
    ax.set(xlabel="False positive rate", ylabel="True positive rate, at most")
