"""Normalisation layers: the gain's gradient is Σ output gradient ⊙ normalised input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor
from torch.nn.functional import group_norm, layer_norm, rms_norm

from clipnoise.gradients.factored.recording import Recording
from clipnoise.gradients.factored.uses import ExplicitGradients, Piece, Use

Map = Callable[[Tensor], Tensor]


def record_layer_norm(
    recording: Recording,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Run a LayerNorm and record its factors."""
    normalise = partial(layer_norm, normalized_shape=tuple(normalized_shape), eps=eps)
    return _record_last_axes(recording, input, normalise, weight=weight, bias=bias)


def record_rms_norm(
    recording: Recording,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Run an RMSNorm and record its factors."""
    normalise = partial(rms_norm, normalized_shape=tuple(normalized_shape), eps=eps)
    return _record_last_axes(recording, input, normalise, weight=weight)


def record_group_norm(
    recording: Recording,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Run a GroupNorm and record its factors."""
    recording.examples_of(input, single=True)
    return _record(
        recording,
        input,
        partial(group_norm, num_groups=num_groups, eps=eps),
        {"weight": weight, "bias": bias},
        by_example=lambda x: x,
        add_up=lambda x: x.flatten(2).sum(dim=2) if x.ndim > 2 else x,
    )


def _record_last_axes(
    recording: Recording, input: Tensor, normalise: partial[Tensor], **parameters: Tensor | None
) -> Tensor:
    """Run and record a normalisation over the last axes."""
    recording.examples_of(input)
    shape = normalise.keywords["normalized_shape"]
    return _record(
        recording,
        input,
        normalise,
        parameters,
        by_example=lambda x: x.reshape(recording.count, -1, *shape),
        add_up=lambda x: x.sum(dim=1),
    )


def _record(
    recording: Recording,
    input: Tensor,
    normalise: partial[Tensor],
    parameters: Mapping[str, Tensor | None],
    *,
    by_example: Map,
    add_up: Map,
) -> Tensor:
    constants = {name: recording.plain(value, input) for name, value in parameters.items()}
    output = normalise(input, **constants)
    tap = recording.tap(output)
    weight = parameters["weight"]
    if recording.trains(weight):
        inputs = by_example(recording.hold(input))
        recording.use(weight, tap, lambda grad: Gain(inputs, by_example(grad), normalise, add_up))
    bias = parameters.get("bias")
    recording.use(bias, tap, lambda grad: ExplicitGradients(add_up(by_example(grad))))
    return output


class Gain(Use):
    """G_i = Σ_t y_t ⊙ N(x)_t, with y the gradient of the output and N(x) the normalised input."""

    def __init__(self, inputs: Tensor, grad: Tensor, normalise: Map, add_up: Map) -> None:
        self.inputs, self.grad, self.normalise, self.add_up = inputs, grad, normalise, add_up
        self.shape = add_up(grad[:1]).shape[1:]
        self.elements = self.workspace = 2 * grad[0].numel()

    def instantiate(self, piece: Piece) -> Tensor:
        products = self.normalise(self.inputs[piece.examples]).mul_(self.grad[piece.examples])
        return piece.added_up(self.add_up(products))

    def add(self, factors: Tensor, into: Tensor) -> None:
        normalised = self.normalise(self.inputs).mul_(self.grad)
        into.view(-1).addmv_(self.add_up(normalised).flatten(1).T, factors)
