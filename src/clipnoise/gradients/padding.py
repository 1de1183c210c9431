"""A check that padding a text further changes nothing that a network computes of it.

A batch of texts is padded to its longest one, before any engine sees it. In a network that notices
the padding, one text would reach all others of its batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from clipnoise.data.rows import BUCKET, RaggedRows
from clipnoise.data.several import call
from clipnoise.data.text import MaskedRows
from clipnoise.errors import UserError, reason
from clipnoise.gradients.checks import ending_of, perturb, unchanged
from clipnoise.gradients.dropout import Masks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Examples

SHORT = (BUCKET, BUCKET, BUCKET - 1, BUCKET // 2, 1)
TOLERANCE = 1e-5  # of the largest output: kernels round differently at another width


def check_padding(network: nn.Module, examples: Examples, vocabulary: int) -> None:
    """Refuse a network whose outputs for a text depend on how far it is padded.

    It is tried on made-up texts, one at a time, at perturbed parameters, in training and in
    evaluation. Parameters, buffers and modes are left as they were.

    Args:
        network: on the CPU.
        examples: the private ones; where they are no texts of different lengths, nothing is tried.
        vocabulary: number of token ids, of which 0 is padding.

    Raises:
        UserError: padding changes an output.
    """
    rows = examples.inputs.rows if isinstance(examples.inputs, MaskedRows) else examples.inputs
    if not isinstance(rows, RaggedRows) or rows.length <= BUCKET:
        return  # all batches have one width
    ending = ending_of(network)
    short = _made_up(vocabulary, ending, SHORT)
    long = 3 * rows.length // (4 * BUCKET) * BUCKET  # the width of a batch of longer texts
    tried = [(short, min(2 * BUCKET, rows.length)), (short, rows.length)]
    if long > BUCKET:
        tried.append((_made_up(vocabulary, ending, (long, long - 1)), rows.length))
    with unchanged(network), torch.no_grad():
        perturb(network)
        for texts, width in tried:
            try:
                apart = [pair for pair in _both(network, texts, width) if not _close(*pair)]
            except Exception as error:  # whatever a network's own code raises
                raise UserError(
                    f"model: it takes no texts padded to {width} token ids: {reason(error)}."
                ) from None
            if apart:
                raise UserError(
                    "model: what it computes of a text depends on how far the text is padded. A "
                    "batch is padded to its longest text, so one text would reach the others, and "
                    "clipping could not bound what it adds. Leave positions whose token id is 0 "
                    "out of attention, sums, means and states."
                )


def _made_up(vocabulary: int, ending: int | None, each: Sequence[int]) -> Tensor:
    """Return texts of these lengths, int64 of shape (texts, length of the first).

    The first is the longest, and repeats one token, so that padding, if it counts, is far from all
    others.
    """
    draws, lengths = torch.Generator().manual_seed(0), torch.tensor(each)
    texts = torch.randint(1, vocabulary, (len(each), each[0]), generator=draws)
    texts[0] = 1
    if ending is not None:
        texts[torch.arange(len(each)), lengths - 1] = ending
    return texts * (torch.arange(each[0]) < lengths.unsqueeze(1))


def _both(network: nn.Module, texts: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the outputs for each text as it is, and padded to a width, without those of padding."""
    padded = torch.nn.functional.pad(texts, (0, width - texts.shape[1]))
    for training in (True, False):
        network.train(training)
        for one in torch.arange(len(texts)).unsqueeze(1):
            outputs = []
            for inputs in (texts[one], padded[one]):
                with Masks(0, one).active():
                    found = call(network, inputs)
                by_token = found.ndim > 2 and found.shape[1] == inputs.shape[1]
                outputs.append(found[inputs != 0] if by_token else found)
            yield outputs[0], outputs[1]


def _close(short: Tensor, long: Tensor) -> bool:
    if short.shape != long.shape:
        return False
    finite = short[short.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(short, long, rtol=0, atol=TOLERANCE * scale, equal_nan=True)
