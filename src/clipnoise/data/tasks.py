"""Tasks: what a network's outputs are compared with, as a loss and a score per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

TaskName = Literal["classification"]


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


def task(name: TaskName) -> Task:
    """Return the task of a name."""
    tasks: dict[TaskName, Task] = {"classification": Classification()}
    return tasks[name]
