"""Micro-batches: clipping the mean of several examples, and what that does to sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipnoise.core.query import Query
from clipnoise.errors import UserError
from clipnoise.lazy import torch
from clipnoise.privacy.draws import Draws

Accounting = Literal["corrected", "as-published"]


@dataclass(frozen=True)
class MicroBatches:
    """The mean of m examples is clipped, not each example's gradient; m = 1 is ordinary clipping.

    Examples are drawn one by one as usual, with rate q = B/n. At each step every one of the n
    positions is assigned to one of K = B/m micro-batches, uniformly and independently of all data
    and of all other positions. The drawn examples of a micro-batch are added up, divided by the
    constant m, and clipped to C. So a micro-batch has m examples only on average, and if nothing is
    clipped the mean over the constant K is Σ g_i/B.

    An example that is added or removed leaves all others where they are. If it is not drawn,
    nothing changes; if it is, one clipped mean moves from anywhere in the ball of radius C to
    anywhere in it, by up to 2C. Given the draws of the others, this is the Poisson-subsampled
    Gaussian mechanism at sensitivity 2C, which the accountants cover. (If groups followed from the
    position in the drawn batch, removing one example would shift them all. Groups that are fixed
    once and drawn as a whole would keep to 2C, but then removing an example replaces a vector
    inside the sample: a mixture against a mixture, which no accountant here covers.)

    Attributes:
        size: m.
        accounting: "corrected" scales the noise to 2C. "as-published" scales it to C, as AdaDPS
            does; its ε is nominal.

    Source: AdaDPS, appendix B (micro-batches of 4, accounted at C).
    """

    size: int = 1
    accounting: Accounting = "corrected"

    def __post_init__(self) -> None:
        if self.size == 1 and self.accounting != "corrected":
            raise UserError(
                f"microbatch_accounting: {self.accounting} requires a microbatch_size above 1."
            )

    def count(self, expected_batch_size: float) -> float:
        """Return K = B/m, the number of micro-batches per step: the constant denominator.

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
        """Return what the noise is scaled to, relative to the sensitivity that the query declares.

        A query under replacement already declares 2C, the diameter of the ball.
        """
        corrected = self.accounting == "corrected" and query.adjacency != "replace"
        return 2.0 if self.size > 1 and corrected else 1.0

    def caveat(self, query: Query) -> str | None:
        """Return why ε is only nominal; None if the noise covers what one example can change."""
        if self.accounting == "corrected" or query.adjacency == "replace":
            return None
        return (
            f"one example can move the clipped mean of a micro-batch of {self.size} by twice the "
            "clip norm, but the noise is scaled to once the clip norm"
        )


class MicroBatchAssignment(Draws):
    """Each step puts every position into one of K micro-batches, uniformly and independently.

    All n positions are assigned, drawn or not, so that no assignment depends on another example.
    """

    def __init__(self, examples: int, count: int, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            examples: n.
            count: K = B/m ≥ 1.
            generator: a CPU stream of random numbers, used by nothing else; None draws from a
                cryptographic source.
        """
        super().__init__(generator)
        self.examples = examples
        self.count = count

    def arrange(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Assign the positions for the next step, and sort its batch by micro-batch.

        Args:
            batch: the examples drawn in this step, indices of shape (b,).

        Returns:
            The indices in their new order, and the micro-batch of each; both int64 of shape (b,).
            Members of a micro-batch are adjacent, and so are micro-batches of equal size.
        """
        assigned = self.integers(self.count, self.examples)[batch]
        sizes = torch.bincount(assigned, minlength=self.count)[assigned]
        order = (sizes * self.count + assigned).argsort(stable=True)
        return batch[order], assigned[order]
