"""What a dataset offers a model: what an example looks like, and the task with its loss and score.

All of it is public and known before any data are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from clipnoise.lazy import Tensor, nn, torch

Kind = Literal["features", "image", "tokens", "nodes", "several"]
TaskName = Literal["classification", "multi-label", "regression", "reconstruction", "masked-tokens"]

NUMBERS, CATEGORIES = "numbers", "categories"  # the two inputs of a table
NO_TARGET = -100  # as a target: there is nothing to predict at this token
RAREST = 1e-7  # the least frequency of a class, whose logarithm is finite


class Task:
    """A loss per example, which is trained, and a score per example, which is reported.

    Attributes:
        score: what `scores` measures, in words for a table; None where there is only the loss.
        guess: what the best constant prediction is called; None where there is none to compare.
    """

    score: ClassVar[str | None] = None
    guess: ClassVar[str | None] = None

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, shape (b,)."""
        raise NotImplementedError

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example, between 0 and 1, shape (b,); higher is better."""
        raise NotImplementedError

    def constant(self, targets: Tensor, outputs: int) -> Tensor:
        """Return the outputs, the same for every example, of least mean loss on these targets.

        Args:
            targets: of n examples, n > 0.
            outputs: how many numbers a network returns for an example.

        Returns:
            Shape (outputs,), float32; of largest mean score, too, where the task has scores.
        """
        raise NotImplementedError


class Classification(Task):
    """One class of several; outputs of shape (b, classes), targets int64 of shape (b,).

    The loss is the cross entropy in nats.
    """

    score = "accuracy"
    guess = "majority class"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def constant(self, targets: Tensor, outputs: int) -> Tensor:
        return (targets.bincount(minlength=outputs) / len(targets)).clamp(min=RAREST).log()

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(dim=-1) == targets).to(outputs.dtype)


class WeightedClassification(Classification):
    """As `Classification`, with the loss of each example times the weight of its class.

    The weight depends on the example alone and acts before its gradient is clipped, so one example
    moves a clipped sum no further than without weights.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Take a weight for each class."""
        self.weights = tuple(weights)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = super().losses(outputs, targets)
        weights = torch.tensor(self.weights, dtype=each.dtype, device=each.device)
        return each * weights[targets]


class ClassScores(Classification):
    """As `Classification`, but the loss is the negative output of the example's class.

    Of outputs Wx + b it has the gradient −(e_y ⊗ x, e_y), wherever it is taken.
    """

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


class ClassMargins(Classification):
    """As `Classification`, but the loss is the mean output less that of the example's class.

    Of outputs Wx + b it has the gradient (1/k − e_y) ⊗ (x, 1), wherever it is taken.
    """

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean(dim=-1) - outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


class MultiLabel(Task):
    """Several tags of many; outputs of shape (b, tags), targets float32 of the same shape.

    The loss is the binary cross entropy in nats, summed over the tags.
    """

    score = "accuracy (the most likely tag is one of the example's)"
    guess = "most frequent tag"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return each.sum(dim=-1)

    def constant(self, targets: Tensor, outputs: int) -> Tensor:
        return targets.mean(dim=0).logit(eps=RAREST)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        first = outputs.argmax(dim=-1, keepdim=True)
        return targets.gather(-1, first).squeeze(-1).to(outputs.dtype)


class Regression(Task):
    """Numbers to predict; outputs of shape (b, numbers), targets float32 of the same shape.

    The loss is half the squared distance.
    """

    guess = "mean predictor"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets).square().sum(dim=-1)

    def constant(self, targets: Tensor, outputs: int) -> Tensor:
        return targets.mean(dim=0)


class Reconstruction(Task):
    """The input itself, flattened; outputs and targets float32 of shape (b, pixels).

    The loss is the squared distance, averaged over the pixels (AdaDPS, Appendix B).
    """

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(dim=-1)


class MaskedTokens(Task):
    """Tokens to predict; outputs of shape (b, length, vocabulary), targets int64 of (b, length).

    The loss of an example is the mean cross entropy over its targets, or 0 without targets, so that
    it does not depend on the number of targets in other examples.
    Source: Devlin et al. 2019, BERT, section 3.1.
    """

    score = "accuracy of masked tokens"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(
            outputs.transpose(1, 2), targets, reduction="none", ignore_index=NO_TARGET
        )
        return _mean_where(each, targets != NO_TARGET)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        right = (outputs.argmax(dim=-1) == targets).to(outputs.dtype)
        return _mean_where(right, targets != NO_TARGET)


def _mean_where(values: Tensor, there: Tensor) -> Tensor:
    """Return the mean of the selected values of each row, or 0 where none is selected."""
    return (values * there).sum(dim=-1) / there.sum(dim=-1).clamp(min=1)


TASKS: dict[TaskName, Task] = {
    "classification": Classification(),
    "multi-label": MultiLabel(),
    "regression": Regression(),
    "reconstruction": Reconstruction(),
    "masked-tokens": MaskedTokens(),
}


@dataclass(frozen=True)
class Input:
    """One of several inputs.

    Attributes:
        name: under which the network takes it; its place, as text, where inputs are a tuple.
        shape: of one example.
        vocabulary: number of ids, where it holds some; None for numbers.
    """

    name: str
    shape: tuple[int, ...]
    vocabulary: int | None = None

    def __str__(self) -> str:
        ids = "" if self.vocabulary is None else f" with {self.vocabulary} ids"
        return f"{self.name} of shape {self.shape}{ids}"


@dataclass(frozen=True)
class Signature:
    """The contract between a dataset and a model.

    Attributes:
        kind: what an input is. "features": a vector; "image": (channels, height, width);
            "tokens": token ids, padded with 0 at the end; "nodes": the features of a node, then of
            its up to K in-neighbours, (1 + K, features + 1); the last column is 1 where there is a
            node and 0 where there is none, see `clipnoise.data.graphs`; "several": the tensors of
            `parts`, see `clipnoise.data.several`.
        shape: of one input, without the batch axis; for tokens the longest; () for several.
        outputs: numbers per example (or per token) that a network returns: classes, tags, pixels.
        task_name: what the outputs are compared with, and how.
        vocabulary: number of token ids; None where inputs are not tokens.
        meaning: what features or tokens stand for, where the same shape can mean different things;
            it matters to public data and to no model.
        parts: the inputs, where there are several.
    """

    kind: Kind
    shape: tuple[int, ...]
    outputs: int
    task_name: TaskName = "classification"
    vocabulary: int | None = None
    meaning: str = ""
    parts: tuple[Input, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers or ids an example has."""
        return sum(math.prod(one.shape) for one in self.parts) or math.prod(self.shape)

    @property
    def numbers(self) -> int:
        """How many numbers a network returns for one example."""
        return self.outputs * (self.shape[0] if self.task_name == "masked-tokens" else 1)

    @property
    def task(self) -> Task:
        """The losses and scores."""
        return TASKS[self.task_name]

    def __str__(self) -> str:
        if self.parts:
            return f"{', '.join(map(str, self.parts))} for {self.task_name}"
        words = "" if self.vocabulary is None else f" from a vocabulary of {self.vocabulary}"
        return f"{self.kind} of shape {self.shape}{words} for {self.task_name}"
