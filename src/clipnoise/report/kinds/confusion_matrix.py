"""How often each class is taken for each other one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.lazy import np
from clipnoise.report import confusion
from clipnoise.report.figures import canvas
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.confusion import PredictedSetting

ABREAST = 3  # subplots
WRITTEN = 12  # classes, up to which each share is written


@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(FigureItem):
    """Which classes are predicted for each class of the test split, in %."""

    kind: Literal["confusion-matrix"] = "confusion-matrix"

    def draw(self, data: ItemData) -> Figure:
        """Draw one matrix per dataset, model, budget and method: means over seeds."""
        every = confusion.settings(data.runs)
        if not every:
            return canvas.blank(confusion.NOTHING)
        titled = [(_title(one), data.runs) for one in every]
        figure, subplots = canvas.grid(titled, ABREAST, height=2.5)
        for (ax, _), setting in zip(subplots, every, strict=True):
            _matrix(ax, setting)
        subplots[0][0].set_ylabel("Class")
        figure.supxlabel("Predicted class", fontsize=9)
        return figure


def _title(setting: PredictedSetting) -> str:
    done, planned = len(setting.by_seed), setting.planned
    lacking = f" ({done}/{planned} runs)" if done < planned else ""
    return f"{setting.names[3]}{lacking}\n{', '.join(setting.names[:3])}"


def _matrix(ax: Axes, setting: PredictedSetting) -> None:
    shares = [
        confusion.ratio(one.all, np.broadcast_to(one.all.sum(1)[:, None], one.all.shape))
        for one in setting.by_seed.values()
    ]
    mean, names = 100 * np.mean(shares, axis=0), setting.first.classes
    form = "{:.0f}" if len(names) <= WRITTEN else ""
    words = np.vectorize(lambda value: form.format(value) if np.isfinite(value) else "")(mean)
    canvas.cells(ax, mean, words, 0, 100)
    labels = names if len(names) <= WRITTEN else []
    places = range(len(labels))
    ax.set_xticks(places, labels, rotation=90 if max(map(len, names)) > 2 else 0)
    ax.set_yticks(places, labels)
