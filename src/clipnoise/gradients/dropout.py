"""Dropout whose masks depend on the run, the step and the example alone.

Torch draws one mask over a whole batch from a global stream: taking one example out would change
the masks, and with them the clipped gradients, of all that follow. Here each element's mask is a
hash of a key (of the run and the step), the example's index, the layer's turn in the forward pass
and the element's coordinates. It is the same in every batch, physical batch size and gradient
engine, at every iterate of a step, and on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clipnoise.gradients.apart import on_whole_batch
from clipnoise.gradients.attention import write_out_attention

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping

WORD = 2**32
HALF_WORD = 2**16
# An odd multiplier for each axis after that of the examples. Elements are identified by their
# coordinates, so padding an axis leaves the masks of the elements before the padding unchanged.
AXES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0xD3A2646D)
CALL = 0x632BE5AB


@dataclass(frozen=True)
class Masks:
    """What decides the dropout masks of a batch.

    Attributes:
        key: of the run and the step; its lowest 64 bits count.
        examples: the index of each example of the batch in its dataset, int64 of shape (b,).
    """

    key: int
    examples: Tensor

    @classmethod
    def first(cls, count: int) -> Masks:
        """Return the masks of examples 0 … b−1 under key 0."""
        return cls(0, torch.arange(count))

    @classmethod
    def of(cls, clipping: Clipping, count: int) -> Masks:
        """Return the masks of a clipping for a batch of b examples."""
        examples = torch.arange(count) if clipping.examples is None else clipping.examples
        return cls(clipping.key, examples)

    def reordered(self, order: Tensor) -> Masks:
        """Return the masks of the same examples in another order, given as indices."""
        return Masks(self.key, self.examples[order.to(self.examples.device)])

    def active(self, hidden: Tensor | None = None) -> ExampleDropout:
        """Return a context in which one forward pass takes these masks.

        Args:
            hidden: under vmap, any tensor with the hidden axis of the examples.
        """
        return ExampleDropout(self, hidden)


class ExampleDropout(TorchFunctionMode):
    """While it is active, every dropout of a forward pass draws its masks example by example.

    So do `rand`, `rand_like` and `bernoulli_`, from which stochastic depth is made.

    The hash is lowbias32 with shifts that copy the sign. One word of the example's key is added
    before it and another one is mixed in half-way. It is not a cryptographic function: masks are
    secret when the key of each step is fresh and secret.

    Source of the hash: Wellons 2018, "Prospecting for Hash Functions" (lowbias32).
    """

    def __init__(self, masks: Masks, hidden: Tensor | None = None) -> None:
        """Begin one forward pass.

        Args:
            masks: the key, and the examples of the batch.
            hidden: under vmap, any tensor with the hidden axis of the examples; None where the
                network sees the axis.
        """
        super().__init__()
        self._masks, self.hidden = masks, hidden
        self.turn = 0  # of the layer that drew last

    def going_on(self, turn: int, hidden: Tensor) -> ExampleDropout:
        """Return the dropout of the same pass, under another vmap, from a layer's turn on."""
        later = ExampleDropout(self._masks, hidden)
        later.turn = turn
        return later

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is None:
            return func(*args, **(kwargs or {}))
        return handler(self, *args, **(kwargs or {}))

    def drop(self, values: Tensor, rate: float) -> Tensor:
        """Set a share of the values to 0 and scale the others up, so that the mean stays.

        Args:
            values: shape (b, …), examples on the first axis; one example may have any shape.
            rate: the share, in [0, 1]; rounded to a multiple of 2^-16.
        """

        def drop(rows: Tensor) -> Tensor:
            return rows * self._factors(rows, rows.shape[1:], rate)

        return self._by_example(drop, values) if rate else values

    def drop_channels(self, values: Tensor, rate: float) -> Tensor:
        """Do as `drop` does with whole channels, the second axis."""

        def drop(rows: Tensor) -> Tensor:
            factors = self._factors(rows, rows.shape[1:2], rate)
            return rows * factors.reshape(*factors.shape, *[1] * (rows.ndim - 2))

        return self._by_example(drop, values) if rate else values

    def keep(self, values: Tensor, rate: float) -> Tensor:
        """Return 1 for a share of the values and 0 for the others, as Bernoulli draws."""
        return self._by_example(
            lambda rows: (self._factors(rows, rows.shape[1:], 1 - rate) > 0).to(rows.dtype), values
        )

    def uniform(self, values: Tensor) -> Tensor:
        """Return uniform numbers in (0, 1), odd multiples of 2^-17, in the shape of a tensor."""

        def draw(rows: Tensor) -> Tensor:
            halves = self._halves(rows.shape[1:], rows.device)[: len(rows)].to(torch.float32)
            return ((halves + (HALF_WORD + 1) / 2) / HALF_WORD).to(rows.dtype)

        return self._by_example(draw, values)

    def _by_example(self, run: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Call a function that draws, on values with the examples on the first axis.

        What an example computes by itself, without such an axis, is one value of that example. In
        a batch that vmap does not hide, values without the axis are shared, and so are the draws.
        """
        count = 1 if self.hidden is not None else len(self._masks.examples)
        if values.ndim and len(values) == count:
            return self._on_whole_batch(run, values)
        return self._on_whole_batch(run, values.unsqueeze(0)).squeeze(0)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Run scaled dot-product attention without dropout; vmap would go example by example."""

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, **options)

        if self.hidden is None or query.ndim < 3:  # of one sequence there are no rows to join
            return attend(query, key, value, mask)
        if mask is None:
            return self._on_whole_batch(attend, query, key, value)
        if mask.ndim < query.ndim or len(mask) < len(query):
            mask = mask[(None,) * (query.ndim - mask.ndim)]
            mask = mask.expand(query.shape[0], *mask.shape[1:])
        return self._on_whole_batch(attend, query, key, value, mask)

    def _on_whole_batch(self, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call a function on tensors with the examples on the first axis."""
        if self.hidden is None:
            return run(*inputs)
        output: Tensor = on_whole_batch(self.hidden, lambda _, rows: run(*rows), inputs)
        return output

    def _factors(self, values: Tensor, shape: torch.Size, rate: float) -> Tensor:
        """Return 0 for elements that are dropped and 1/(1 − rate) for others: (b, *shape)."""
        dropped = round(rate * HALF_WORD)
        if dropped == HALF_WORD:
            return values.new_zeros(len(values), *shape)
        # 1 from the smallest integer that is kept, and 0 below, by arithmetic on floats: a
        # comparison to booleans, which are then converted, takes three times as long.
        exact = torch.promote_types(values.dtype, torch.float32)  # holds every 16-bit integer
        kept = (
            self._halves(shape, values.device)[: len(values)]
            .to(exact)
            .add_(HALF_WORD // 2 + 1 - dropped)
        )
        return kept.clamp(0, 1).mul_(HALF_WORD / (HALF_WORD - dropped)).to(values.dtype)

    def _halves(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return a uniform 16-bit integer for each element; two share a word: (b, *shape)."""
        first, second = (
            word.view(-1, *[1] * max(1, len(shape))) for word in self._words_of_examples(device)
        )
        *outer, last = shape or (1,)
        coordinates = torch.zeros((), dtype=torch.int32, device=device)
        for axis, size in enumerate((*outer, (last + 1) // 2)):
            along = torch.arange(size, dtype=torch.int32, device=device)
            coordinates = coordinates.unsqueeze(-1) + along * _signed(AXES[axis])
        x = coordinates + first
        x ^= x >> 16
        x *= _signed(0x7FEB352D)
        x ^= second
        x ^= x >> 15
        x *= _signed(0x846CA68B)
        x ^= (x >> 16) & (HALF_WORD - 1)  # this shift must not copy the sign into the upper half
        return x.view(torch.int16)[..., :last].reshape(-1, *shape)

    def _words_of_examples(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return two words for each example, of the key, the example and the layer's turn."""
        self.turn += 1
        low, high = self._masks.key % WORD, self._masks.key // WORD % WORD
        turn = _mixed(torch.tensor(_signed(low + self.turn * CALL), dtype=torch.int32))
        index = self._masks.examples.to(device=device, dtype=torch.int32)
        first = _mixed(_mixed(index ^ turn.to(device)) + _signed(high))
        return first, _mixed(first + _signed(low ^ AXES[-1]))


def _signed(word: int) -> int:
    """Return the 32-bit integer with the same bits; torch has no arithmetic on unsigned ones."""
    word %= WORD
    return word - WORD if word >= WORD // 2 else word


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ x >> 16) * _signed(0x7FEB352D)
    x = (x ^ x >> 15) * _signed(0x846CA68B)
    return x ^ x >> 16


def _dropout(
    drop: Callable[[ExampleDropout, Tensor, float], Tensor],
    masks: ExampleDropout,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    return drop(masks, input, p) if training else input


def _recurrent(
    run: Callable[..., tuple[Tensor, ...]], masks: ExampleDropout, *arguments: Any
) -> tuple[Tensor, ...]:
    """Run a recurrent network layer by layer: PyTorch draws the masks between its layers itself."""
    input, state, parameters, has_biases, layers, rate, train, bidirectional, batch_first = (
        arguments
    )
    if not train or not rate or layers == 1 or not isinstance(has_biases, bool):
        return run(*arguments)  # packed sequences have the sizes of their batches before it
    single = isinstance(state, torch.Tensor)  # of an LSTM, the state is h and c
    directions, each = 2 if bidirectional else 1, len(parameters) // layers
    rows, ends = input, []
    for layer in range(layers):
        if layer:
            dropped = masks.drop(rows if batch_first else rows.transpose(0, 1), rate)
            rows = dropped if batch_first else dropped.transpose(0, 1)
        of_layer = slice(layer * directions, (layer + 1) * directions)
        own = state[of_layer] if single else [part[of_layer] for part in state]
        weights = parameters[layer * each : (layer + 1) * each]
        rows, *end = run(rows, own, weights, has_biases, 1, 0.0, train, bidirectional, batch_first)
        ends.append(end)
    return rows, *(torch.cat(part) for part in zip(*ends, strict=True))


def _multi_head_attention(
    masks: ExampleDropout, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    run = functional.multi_head_attention_forward
    bound = signature(run).bind(*arguments, **options)
    if not bound.arguments["dropout_p"] or not bound.arguments.get("training", True):
        return run(*arguments, **options)
    with masks:  # a mode is off while it handles a function, and this one calls others
        return write_out_attention(functional.linear, lambda value: value, *arguments, **options)


def _attention(
    masks: ExampleDropout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Write out scaled dot-product attention: the fused kernel draws its own masks."""
    if dropout_p == 0:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return masks.attend(query, key, value, attn_mask, **options)
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
    scores = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale) @ key.mT
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return masks.drop(scores.softmax(dim=-1), dropout_p) @ value


def _bernoulli_in_place(
    masks: ExampleDropout, tensor: Tensor, p: float = 0.5, *, generator: Any = None
) -> Tensor:
    if generator is not None or isinstance(p, torch.Tensor):
        return tensor.bernoulli_(p, generator=generator)
    return tensor.copy_(masks.keep(tensor, p))


def _rand(masks: ExampleDropout, *sizes: Any, generator: Any = None, **options: Any) -> Tensor:
    if generator is not None or options.get("out") is not None:
        return torch.rand(*sizes, generator=generator, **options)
    return masks.uniform(torch.empty(*sizes, **options))


def _rand_like(masks: ExampleDropout, input: Tensor, **options: Any) -> Tensor:
    return masks.uniform(torch.empty_like(input, **options))


RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
HANDLERS: dict[Any, Callable[..., Any]] = {
    functional.dropout: partial(_dropout, ExampleDropout.drop),
    functional.dropout1d: partial(_dropout, ExampleDropout.drop_channels),
    functional.dropout2d: partial(_dropout, ExampleDropout.drop_channels),
    functional.dropout3d: partial(_dropout, ExampleDropout.drop_channels),
    functional.scaled_dot_product_attention: _attention,
    functional.multi_head_attention_forward: _multi_head_attention,
    **{run: partial(_recurrent, run) for run in RECURRENT},
    torch.Tensor.bernoulli_: _bernoulli_in_place,
    torch.rand: _rand,
    torch.rand_like: _rand_like,
}
