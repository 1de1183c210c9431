"""What goes into a model and what comes out of it: public, known before any data is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipnoise.data.tasks import Task, TaskName, task_of

Kind = Literal["features", "image", "tokens", "nodes"]


@dataclass(frozen=True)
class Signature:
    """The contract between a dataset and a model.

    Attributes:
        kind: what an input is. "features": a vector; "image": (channels, height, width);
            "tokens": token ids, filled up with 0 at the end; "nodes": the features of a
            node, then of its up to K in-neighbours, (1 + K, features + 1); the last column is 1
            where there is a node and 0 where there is none, see `clipnoise.data.graphs`.
        shape: of one input, without the batch axis; of tokens the longest.
        outputs: numbers per example (or per token) that a network gives: classes, tags, pixels.
        task_name: what the outputs are compared with, and how.
        vocabulary: how many token ids there are; None where inputs are not tokens.
        meaning: what features or tokens stand for, where the same shape can mean different things;
            it matters to public data, and to no model.
    """

    kind: Kind
    shape: tuple[int, ...]
    outputs: int
    task_name: TaskName = "classification"
    vocabulary: int | None = None
    meaning: str = ""

    @property
    def numbers(self) -> int:
        """How many numbers a network gives for one example."""
        return self.outputs * (self.shape[0] if self.task_name == "masked-tokens" else 1)

    @property
    def task(self) -> Task:
        """The losses and scores of the task."""
        return task_of(self.task_name)

    def __str__(self) -> str:
        words = "" if self.vocabulary is None else f" from a vocabulary of {self.vocabulary}"
        return f"{self.kind} of shape {self.shape}{words} for {self.task_name}"
