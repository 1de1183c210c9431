"""Metrics that a study may ask for beside loss and accuracy: one class each.

Each is computed once over a whole split, because most are no mean over examples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.signature import NO_TARGET, TASKS, TaskName
from clipnoise.errors import UserError, nearest, unknown
from clipnoise.lazy import Tensor, nn, np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PERCENT = ("%", 100.0, 2)  # unit, factor and decimals of what is shown as a percentage
BINS = 15  # of confidence (Guo et al. 2017, section 4)


def column_of(name: str, split: str = "test") -> str:
    """Return the column of a metric on a split, by its name in study files."""
    return f"{split}_{name}"


class Measure(ABC):
    """A metric of a split.

    Attributes:
        id: its name in study files.
        name: its name for readers, which follows the name of a split.
        unit: "%" or "".
        factor: converts a value into that unit.
        decimals: digits after the point.
        higher_is_better: which direction is good.
        tasks: the tasks that it fits.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    unit: ClassVar[str] = ""
    factor: ClassVar[float] = 1.0
    decimals: ClassVar[int] = 4
    higher_is_better: ClassVar[bool] = True
    tasks: ClassVar[tuple[TaskName, ...]]

    @property
    def column(self) -> str:
        """Its column of the test split, in metrics.csv and the tables of a study."""
        return column_of(self.id)

    def kept(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return what the value needs of a batch: tensors whose first axis runs over examples."""
        return outputs, targets

    @abstractmethod
    def value(self, *kept: Array) -> float:
        """Return the metric of a split.

        Args:
            kept: what `kept` returned of each batch, joined, as float64; none is empty, all finite.

        Returns:
            The metric; nan where it is not defined.
        """


class ClassMeasure(Measure):
    """Base of the metrics of a classification; `kept` has logits of (n, classes) and classes."""

    tasks = ("classification",)


class BalancedAccuracy(ClassMeasure):
    """The mean recall over the classes of the split: 1/classes for a constant prediction."""

    id = "balanced_accuracy"
    name = "balanced accuracy"
    unit, factor, decimals = PERCENT

    def value(self, *kept: Array) -> float:
        from sklearn.metrics import recall_score

        logits, targets = kept
        there = np.unique(targets)
        predicted = logits.argmax(axis=1)
        recall = recall_score(targets, predicted, labels=there, average="macro", zero_division=0)
        return float(recall)


class F1Macro(ClassMeasure):
    """The mean over classes of F1; a class without a correct prediction counts as 0."""

    id = "f1_macro"
    name = "macro F1"
    unit, factor, decimals = PERCENT

    def value(self, *kept: Array) -> float:
        from sklearn.metrics import f1_score

        logits, targets = kept
        return float(f1_score(targets, logits.argmax(axis=1), average="macro", zero_division=0))


class AUC(ClassMeasure):
    """The area under the ROC curve of each class against the rest, averaged over the classes.

    Classes that the split lacks, or that are all it has, do not count. With two classes it is the
    ordinary area under the curve. Source: Hand and Till 2001; here one against the rest.
    """

    id = "auc"
    name = "AUC"

    def value(self, *kept: Array) -> float:
        from scipy.special import softmax
        from sklearn.metrics import roc_auc_score

        logits, targets = kept
        chances = softmax(logits, axis=1)
        areas = [
            roc_auc_score(targets == one, chances[:, int(one)])
            for one in np.unique(targets)
            if not np.all(targets == one)
        ]
        return float(np.mean(areas)) if areas else math.nan


class CalibrationError(ClassMeasure):
    """The expected calibration error: the mean gap between confidence and accuracy.

    The confidence is the largest predicted probability; the gap is that between means over examples
    of similar confidence, weighted by their number. Source: Guo et al. 2017, On Calibration of
    Modern Neural Networks, equation 3, with 15 bins of equal width.
    """

    id = "calibration_error"
    name = "calibration error"
    higher_is_better = False

    def value(self, *kept: Array) -> float:
        from scipy.special import softmax

        logits, targets = kept
        confidence = softmax(logits, axis=1).max(axis=1)
        right = (logits.argmax(axis=1) == targets).astype(np.float64)
        bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
        return float(np.abs(gaps).sum() / len(targets))


class R2(Measure):
    """The coefficient of determination: 0 for the mean of the split; averaged over the numbers."""

    id = "r2"
    name = "R²"
    tasks = ("regression",)

    def value(self, *kept: Array) -> float:
        from sklearn.metrics import r2_score

        outputs, targets = kept
        return float(r2_score(targets, outputs)) if len(targets) > 1 else math.nan


class MeanAbsoluteError(Measure):
    """The mean absolute error, in the unit of the target; averaged over the numbers."""

    id = "mae"
    name = "mean absolute error"
    higher_is_better = False
    tasks = ("regression",)

    def value(self, *kept: Array) -> float:
        from sklearn.metrics import mean_absolute_error

        outputs, targets = kept
        return float(mean_absolute_error(targets, outputs))


class Perplexity(Measure):
    """The exponential of the mean cross entropy in nats, over all tokens to be predicted.

    Each token counts once, whereas the loss averages within each example first.
    """

    id = "perplexity"
    name = "perplexity"
    decimals = 2
    higher_is_better = False
    tasks = ("masked-tokens",)

    def kept(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        each = nn.functional.cross_entropy(
            outputs.transpose(1, 2), targets, reduction="none", ignore_index=NO_TARGET
        )
        return each.double().sum(dim=1), (targets != NO_TARGET).sum(dim=1)

    def value(self, *kept: Array) -> float:
        losses, tokens = kept
        return float(np.exp(losses.sum() / tokens.sum())) if tokens.sum() else math.nan


MEASURES: dict[str, Measure] = {
    one.id: one
    for one in (
        BalancedAccuracy(),
        F1Macro(),
        AUC(),
        CalibrationError(),
        R2(),
        MeanAbsoluteError(),
        Perplexity(),
    )
}
COLUMNS = tuple(one.column for one in MEASURES.values())
ACCURACY, LOSS = "accuracy", "loss"  # which every run measures, where its task has them
VALIDATION = tuple(f"validation_{name}" for name in (ACCURACY, LOSS, *MEASURES))
# What a search may choose by; for mypy any text.
if TYPE_CHECKING:
    ValidationMetric = str
else:
    ValidationMetric = Literal[VALIDATION]


def fitting(task: TaskName) -> list[str]:
    """Return the names of the metrics that fit a task, those that every run measures first."""
    always = [ACCURACY] if TASKS[task].score is not None else []
    return [*always, LOSS, *(name for name, one in MEASURES.items() if task in one.tasks)]


def require_metric(name: str, task: TaskName, key: str, allowed: Collection[str] = ()) -> None:
    """Refuse a metric that does not exist or does not fit a task.

    Args:
        name: as in a study file.
        task: what it is measured on.
        key: where it was given.
        allowed: of those that fit, the only ones allowed; empty allows all.

    Raises:
        UserError: names those allowed, and the nearest one.
    """
    able = [one for one in fitting(task) if not allowed or one in allowed]
    if name in able:
        return
    if name not in (*MEASURES, ACCURACY):
        raise unknown("metric", name, able, key=key)
    reason = f"does not fit {task}" if name not in fitting(task) else "is not among its metrics"
    raise UserError(
        f"{key}: {name} {reason}.{nearest(name, able)} Allowed: {', '.join(sorted(able))}."
    )


def measured(names: Collection[str]) -> tuple[str, ...]:
    """Return the metrics among some that not every run measures, once each, in a fixed order."""
    return tuple(name for name in MEASURES if name in names)


def measured_columns(names: Collection[str]) -> list[str]:
    """Return the columns of the metrics among some that not every run measures.

    They are of the test split and, for searches, of the validation split.
    """
    return [column_of(name, split) for split in ("test", "validation") for name in measured(names)]


def default_metric(task: TaskName) -> str:
    """Return what runs are compared by where their study does not say: accuracy, or loss."""
    return LOSS if TASKS[task].score is None else ACCURACY


def higher_is_better(name: str) -> bool:
    """Return which direction of a metric is good, by its name in study files."""
    return MEASURES[name].higher_is_better if name in MEASURES else name != LOSS
