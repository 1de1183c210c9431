"""Report on Figure 2 of the design-principles paper."""

from __future__ import annotations

from typing import ClassVar

from matplotlib.axes import Axes

from clipnoise.report.figures import canvas
from clipnoise.report.formats import decimal
from clipnoise.report.reproductions.axes import logarithmic
from clipnoise.report.reproductions.base import Data, Drawing, Report
from clipnoise.report.styles import COLOURS, style

SHOWN = {
    "non-private AdaGrad": style("adam"),
    "post-processing": style("dp-adagrad"),
    "independent moments": style("ime-adagrad"),
    "independent moments for free": style("ime-adagrad", 1),
}
LUCKY = "lucky experiments, η of each"
SAME = "lucky experiments, η of non-private AdaGrad"
READINGS = {LUCKY: "o", SAME: "D", "all experiments, η of each": "^"}


class Figure2Report(Report):
    """Private AdaGrad on sparse 1-D logistic regression."""

    id: ClassVar[str] = "design-principles/fig2"
    title: ClassVar[str] = "Private AdaGrad on 1-D logistic regression: Figure 2"
    source: ClassVar[str] = (
        "On Design Principles for Private Adaptive Optimizers, section 5.1 and Figure 2"
    )
    setup: ClassVar[tuple[str, ...]] = (
        "1,000 examples, 90% of them zeros, one epoch at batch size 1, C = 1, σ = 0.1; dense "
        "correlated noise, optimal for one participation; 30 noise draws; test loss of the last "
        "parameter on 10,000 dense examples. The paper has one training set and one test set. "
        "Here there are 200 of each, an experiment each, so that its numbers can be seen among "
        "those that other draws would have given.",
        "Numbers are compared as the excess over the loss of the truth on the same test set: the "
        "level itself is a matter of the test set drawn. The learning rate is tuned on the test "
        "loss over nine values, once for all experiments and once for each, as somebody with one "
        "experiment would. “Lucky” experiments are those in which non-private AdaGrad then loses "
        "nothing on the truth to four digits, as in the paper.",
        "Independent moments are run as Algorithm 6 has them, with the square's noise for a "
        "sensitivity of (2B + 1)C²/B² = 3C²; and with noise for C², which is enough for a batch "
        "of exactly one example.",
    )

    def drawings(self, data: Data) -> list[Drawing]:
        figure, axes = canvas.sheet(1, 2, height=2.9)
        self._rates(axes[0, 0], data)
        self._readings(axes[0, 1], data)
        caption = (
            "Left: mean excess over all experiments at each η. Right: mean excess under three ways "
            "to choose experiments and η; bars are the published values."
        )
        return [Drawing("Excess over the truth", caption, figure)]

    def _rates(self, ax: Axes, data: Data) -> None:
        tuning = data.table("tuning")
        for name, look in SHOWN.items():
            own = tuning[tuning["variant"] == name]
            ax.plot(
                own["learning_rate"],
                own["excess"],
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                label=name,
            )
        ax.set(xlabel="η", ylabel="Excess")
        logarithmic(ax, "x", "y")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=7.5)

    def _readings(self, ax: Axes, data: Data) -> None:
        places = range(len(SHOWN))
        published = [data.published(f"excess, {name}, {LUCKY}") for name in SHOWN]
        ax.scatter(published, places, marker="|", s=160, color=canvas.INK, label="published")
        for rank, (reading, marker) in enumerate(READINGS.items()):
            values = [data.measured(f"excess, {name}, {reading}") for name in SHOWN]
            colour = COLOURS[rank]
            ax.scatter(values, places, marker=marker, s=22, color=colour, label=reading)
        ax.set_yticks(list(places), [name.replace(" ", "\n", 1) for name in SHOWN])
        ax.set_xlabel("Excess")
        ax.invert_yaxis()
        ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.22), fontsize=7.5)

    def remarks(self, data: Data) -> list[str]:
        def value(reading: str, name: str = "post-processing") -> str:
            return decimal(data.measured(f"excess, {name}, {reading}"), 4)

        share = decimal(100 * data.measured("share of lucky experiments"), 0)
        free, moments = "independent moments for free", "independent moments"
        return [
            f"The truth: {data.say('loss of the truth, exact expectation')} in expectation; over "
            f"test sets of 10,000 it varies by "
            f"{data.say('loss of the truth, test sets: standard deviation', 2)}. The published "
            "0.5976 is an ordinary draw.",
            "A non-private loss equal to that of the truth is not typical: over all experiments "
            f"the excess is {value('all experiments, one η', 'non-private AdaGrad')} at one η, "
            f"{value('all experiments, η of each', 'non-private AdaGrad')} at the η best on each "
            f"test set. {share}% of the experiments are lucky in this sense.",
            "With the η of each method tuned, post-processing is no worse than independent "
            f"moments: in lucky experiments {value(LUCKY)} against {value(LUCKY, moments)} (for "
            f"free: {value(LUCKY, free)}); over all experiments and at one η "
            f"{value('all experiments, one η')} against "
            f"{value('all experiments, one η', moments)}. The published gap (0.0034 against "
            "0.0005) does not show.",
            "All three published numbers are met to 0.0002 by the mean over lucky experiments when "
            f"every method runs at the η that is best for non-private AdaGrad: {value(SAME)} for "
            f"post-processing (published 0.0034), {value(SAME, moments)} for independent "
            f"moments (0.0005), {value(SAME, free)} for free (0.0004). So the "
            "published gap fits a learning rate that was tuned once, without noise. The paper says "
            "only “we tune the base learning rate η”; this is inferred from the numbers.",
        ]
