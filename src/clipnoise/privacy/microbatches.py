"""Micro-batches: what clipping the mean of several examples means for sensitivity and claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.errors import UserError
from clipnoise.privacy.queries import Query

if TYPE_CHECKING:
    import torch

Accounting = Literal["corrected", "as-published"]


@dataclass(frozen=True)
class MicroBatches:
    """The mean of m examples is clipped, not each example's gradient; m = 1 is ordinary clipping.

    Examples are drawn one by one as ever, with rate q = B/n. In each step every one of the n
    positions is in one of K = B/m micro-batches, drawn anew and uniformly, independently of all
    data and of all other positions; the drawn examples of a micro-batch are added up, divided by
    the constant m, and clipped to C. So a micro-batch has m examples on average, not always, and
    the mean over the constant K is Σ g_i/B where nothing is clipped.

    An example that is added or removed leaves all others where they are. When it is not drawn
    nothing changes; when it is, one clipped mean moves, from anywhere in the ball of radius C to
    anywhere in it: by up to 2C. Given the draws of the others this is the Poisson-subsampled
    Gaussian mechanism at sensitivity 2C, which the accountants cover. (Groups by position in the
    drawn batch would all shift when one example goes. Groups fixed for good and drawn as wholes
    keep to 2C, but then removing an example replaces a vector inside the sample: a mixture against
    a mixture, which no accountant here covers.)

    Attributes:
        size: m.
        accounting: "corrected" scales noise to 2C. "as-published" scales it to C as AdaDPS does;
            its ε is nominal.

    Source: AdaDPS, appendix B (micro-batches of 4, accounted at C).
    """

    size: int = 1
    accounting: Accounting = "corrected"

    def __post_init__(self) -> None:
        if self.size == 1 and self.accounting != "corrected":
            raise UserError(
                f"microbatch_accounting: {self.accounting} goes with a microbatch_size above 1."
            )

    def count(self, expected_batch_size: float) -> float:
        """Return K = B/m, how many micro-batches a step has: the constant denominator.

        Raises:
            UserError: B is not a multiple of m.
        """
        if self.size > 1 and expected_batch_size % self.size:
            raise UserError(
                f"microbatch_size: the expected batch size {expected_batch_size:g} must be a "
                f"multiple of it, got {self.size}."
            )
        return expected_batch_size / self.size

    def sensitivity_factor(self, query: Query) -> float:
        """Return what noise is scaled to, relative to the sensitivity that the query declares.

        A query under replacement declares 2C already: a ball is not wider than that.
        """
        corrected = self.accounting == "corrected" and query.adjacency != "replace"
        return 2.0 if self.size > 1 and corrected else 1.0

    @property
    def caveat(self) -> str:
        """What is wrong with an ε as published, in words for a report."""
        return (
            f"one example can move the clipped mean of a micro-batch of {self.size} by twice the "
            "clip norm, and the noise is scaled to once"
        )

    def covered(self, query: Query) -> bool:
        """Return whether noise is scaled to what one example can really change."""
        return self.accounting == "corrected" or query.adjacency == "replace"


class MicroBatchAssignment:
    """Each step puts every position into one of K micro-batches, uniformly and independently.

    All n positions are assigned, drawn or not, so that no example's place depends on another's.
    """

    def __init__(self, examples: int, count: int, generator: torch.Generator) -> None:
        """Start the stream.

        Args:
            examples: n.
            count: K = B/m ≥ 1.
            generator: a CPU stream of random numbers, used by nothing else.
        """
        self.examples = examples
        self.count = count
        self._generator = generator

    def arrange(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Assign the next step and bring its batch into the order of the micro-batches.

        Args:
            batch: the examples drawn in this step, indices of shape (b,).

        Returns:
            The indices in their new order, and the micro-batch of each; both int64 of shape (b,).
            Members of a micro-batch are next to each other, and so are micro-batches of one size.
        """
        import torch

        assigned = torch.randint(self.count, (self.examples,), generator=self._generator)[batch]
        sizes = torch.bincount(assigned, minlength=self.count)[assigned]
        order = (sizes * self.count + assigned).argsort(stable=True)
        return batch[order], assigned[order]

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream, for a checkpoint."""
        return {"generator": self._generator.get_state()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the assignments that follow are the same bit for bit."""
        self._generator.set_state(state["generator"])
