"""Tasks: what a network's outputs are compared with, as a loss and a score per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

TaskName = Literal["classification", "multi-label", "regression", "reconstruction", "masked-tokens"]

NOT_ASKED = -100  # as a target: this token is not asked about


@dataclass(frozen=True)
class Task:
    """A loss per example, which is trained, and a score per example, which is reported.

    Attributes:
        score: what `scores` measures, in words for a table; None where there is only the loss.
    """

    score: ClassVar[str | None]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, shape (b,)."""
        raise NotImplementedError

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example, between 0 and 1, shape (b,); higher is better."""
        raise NotImplementedError


class Classification(Task):
    """One class of several; outputs of shape (b, classes), targets int64 of shape (b,)."""

    score: ClassVar[str | None] = "accuracy"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each example, in nats."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the most likely class is the right one."""
        return (outputs.argmax(dim=-1) == targets).to(outputs.dtype)


class MultiLabel(Task):
    """Several tags of many; outputs of shape (b, tags), targets float32 of the same shape."""

    score: ClassVar[str | None] = "accuracy (the most likely tag is one of the example's)"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross entropy of each example, in nats, added up over the tags."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        each = binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return each.sum(dim=-1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the most likely tag is one of the example's."""
        first = outputs.argmax(dim=-1, keepdim=True)
        return targets.gather(-1, first).squeeze(-1).to(outputs.dtype)


class Regression(Task):
    """Numbers to predict; outputs of shape (b, numbers), targets float32 of the same shape."""

    score: ClassVar[str | None] = None

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return half the squared distance of each example."""
        return 0.5 * (outputs - targets).square().sum(dim=-1)


class Reconstruction(Task):
    """The input itself, flattened; outputs and targets float32 of shape (b, pixels).

    Source: AdaDPS, Appendix B: the mean squared distance in the pixel space.
    """

    score: ClassVar[str | None] = None

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared distance of each example, averaged over its pixels."""
        return (outputs - targets).square().mean(dim=-1)


class MaskedTokens(Task):
    """Tokens to guess; outputs of shape (b, length, vocabulary), targets int64 of (b, length).

    The loss of an example is the mean over its own asked tokens, so that no example depends on how
    many are asked in another; one with no asked token has loss 0.
    Source: Devlin et al. 2019, BERT, section 3.1.
    """

    score: ClassVar[str | None] = "accuracy of masked tokens"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of each example's asked tokens, in nats."""
        from torch.nn.functional import cross_entropy

        each = cross_entropy(
            outputs.transpose(1, 2), targets, reduction="none", ignore_index=NOT_ASKED
        )
        return _mean_where(each, targets != NOT_ASKED)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each example's asked tokens that are guessed."""
        right = (outputs.argmax(dim=-1) == targets).to(outputs.dtype)
        return _mean_where(right, targets != NOT_ASKED)


def _mean_where(values: Tensor, asked: Tensor) -> Tensor:
    """Return the mean of each row's asked values, 0 where nothing is asked."""
    return (values * asked).sum(dim=-1) / asked.sum(dim=-1).clamp(min=1)


def task_of(name: TaskName) -> Task:
    """Return the task of a name."""
    tasks: dict[TaskName, Task] = {
        "classification": Classification(),
        "multi-label": MultiLabel(),
        "regression": Regression(),
        "reconstruction": Reconstruction(),
        "masked-tokens": MaskedTokens(),
    }
    return tasks[name]
