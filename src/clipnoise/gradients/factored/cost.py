"""What each way to norms costs, in multiply-adds for one example, and which one pays.

An element of an instantiated gradient that passes through memory costs as much as many
multiply-adds of a matrix product. Where gradients are too large to be kept, their weighted sum has
to be computed in any case; where they are kept, it costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.gradients.factored.groups import Groups
    from clipnoise.gradients.factored.uses import Use

ELEMENT = 20  # multiply-adds that one element of an instantiated gradient costs
MEETING = 20  # multiply-adds that one inner product of rows costs beside itself


def linear_in_products(total: int, outputs: int, inputs: int, *, keeps: bool) -> bool:
    """Return whether a linear layer's norms cost less by inner products of its rows.

    Args:
        total: rows that meet each other.
        outputs: o.
        inputs: p, of a weight of shape (o, p).
        keeps: whether instantiated gradients would be kept.
    """
    products = total**2 * (inputs + outputs + MEETING)
    summing = total * inputs * outputs
    return products + summing * keeps < summing + ELEMENT * inputs * outputs


def convolution_in_products(
    total: int, outputs: int, inputs: int, kernel: int, *, keeps: bool
) -> bool:
    """Return whether a convolution's norms cost less by inner products of its pixels.

    Args:
        total: pixels that meet each other.
        outputs: output channels.
        inputs: input channels.
        kernel: elements of the kernel for one channel.
        keeps: whether instantiated gradients would be kept.
    """
    products = total**2 * (inputs + outputs + MEETING + 2 * kernel)
    weights = inputs * outputs * kernel
    return products + total * weights * keeps < (total + ELEMENT) * weights


def embedding_in_products(total: int, tokens: int) -> bool:
    """Return whether an embedding's norms cost less by comparing all tokens of an example.

    Args:
        total: tokens that meet each other.
        tokens: rows of the weight.
    """
    return total**2 < 4 * tokens


def worth_keeping(uses: Sequence[Use], groups: Groups) -> bool:
    """Return whether instantiated gradients take no more memory than the factors they replace."""
    gradients = uses[0].gradient_elements * groups.count
    return gradients <= groups.examples * sum(use.elements for use in uses)
