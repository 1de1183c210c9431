"""What a run draws and clips as one: an example, the mean of a micro-batch, or a user's update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clipnoise.gradients.users import UserEngine
from clipnoise.privacy.microbatches import MicroBatchAssignment
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.data.base import Examples, Splits
    from clipnoise.gradients.engine import GradientEngine
    from clipnoise.privacy.queries import Clipping
    from clipnoise.run.spec import RunSpec


@dataclass
class Units:
    """The private units of a run.

    Attributes:
        population: what the sampler's indices point at: examples, or the numbers of users.
        engine: turns units into clipped sums.
        size: m of the micro-batches.
        assignment: the stream that puts examples into micro-batches; None where there are none.
    """

    population: Examples
    engine: GradientEngine
    size: int = 1
    assignment: MicroBatchAssignment | None = None

    def arrange(self, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a step's batch in the order to process it, and the micro-batch of each unit."""
        return (batch, None) if self.assignment is None else self.assignment.arrange(batch)

    def clipping(self, clipping: Clipping, groups: Tensor | None) -> Clipping:
        """Return a method's clipping with the step's micro-batches in it."""
        return (
            clipping if groups is None else replace(clipping, group_size=self.size, groups=groups)
        )

    def examples_in(self, batch: Tensor) -> int:
        """Return how many gradients of examples a step on these units takes."""
        engine = self.engine
        return engine.examples_of(batch) if isinstance(engine, UserEngine) else len(batch)


def private_units(
    spec: RunSpec, splits: Splits, engine: GradientEngine, side_information: Tensor | None
) -> Units:
    """Return the private units of a run.

    Args:
        spec: the run.
        splits: its data.
        engine: what takes gradients of examples.
        side_information: A, shape (d,), or None.
    """
    groups = spec.microbatches
    assignment = None
    if groups.size > 1:
        count = round(groups.count(spec.training.expected_batch_size))
        draws = generator("micro-batches", spec.seed)
        assignment = MicroBatchAssignment(spec.examples, count, draws)
    local = spec.method.local_training()
    if local is None:
        return Units(splits.train, engine, groups.size, assignment)
    assert splits.users is not None  # RunSpec takes no dataset without
    scale = None
    if local.gamma is not None:
        assert side_information is not None
        scale = 1 / (side_information + local.gamma)
    users = UserEngine(
        engine,
        splits.train,
        splits.users,
        spec.examples,
        learning_rate=local.learning_rate,
        epochs=local.epochs,
        batch_size=local.batch_size,
        scale=scale,
    )
    return Units(users.units, users, groups.size, assignment)
