"""Convolutions as linear layers on patches; inner products of patches are sums over pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, pad, unfold

from clipnoise.gradients.factored.linear import linear_in_products
from clipnoise.gradients.factored.recording import Recording, UnsupportedError
from clipnoise.gradients.factored.uses import (
    ELEMENT,
    OVERHEAD,
    ExplicitGradients,
    InProducts,
    Piece,
    Use,
    add_pairs,
    add_up,
    gram,
)

Pair = tuple[int, int]


FEW_PIXELS = 16


@dataclass(frozen=True)
class Geometry:
    """The options of a two-dimensional convolution, as pairs (vertical, horizontal)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def by_pixels(self) -> bool:
        """Whether inner products of patches can be summed from inner products of pixels."""
        return self.stride == (1, 1)

    def patches(self, images: Tensor) -> Tensor:
        """Return the patch below each output pixel: (n, c, H, W) → (n, c·k·k, P)."""
        if self.kernel == self.stride == (1, 1) and self.padding == (0, 0):
            return images.flatten(2)
        return unfold(images, self.kernel, self.dilation, self.padding, self.stride)


def record_conv2d(
    recording: Recording,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: str | int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Run a two-dimensional convolution and record its factors."""
    kernel, dilations = (weight.shape[2], weight.shape[3]), _pair(dilation)
    around = _padding(padding, kernel, dilations)
    g = Geometry(kernel, _pair(stride), around, dilations, groups)
    constants = recording.plain(weight, input), recording.plain(bias, input)
    output = conv2d(input, *constants, g.stride, g.padding, g.dilation, groups)
    return _record(recording, input, output, (weight, bias), g)


def record_conv1d(
    recording: Recording,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int] = 1,
    padding: str | int | tuple[int] = 0,
    dilation: int | tuple[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Run a one-dimensional convolution and record its factors, as for images one pixel high."""
    kernel, dilations = (1, weight.shape[2]), (1, _pair(dilation)[1])
    around = (0, _padding(padding, kernel, dilations)[1])
    g = Geometry(kernel, (1, _pair(stride)[1]), around, dilations, groups)
    constants = recording.plain(weight, input), recording.plain(bias, input)
    output = conv1d(input, *constants, g.stride[1], g.padding[1], g.dilation[1], groups)
    return _record(recording, input, output, (weight, bias), g)


def _record(
    recording: Recording,
    input: Tensor,
    output: Tensor,
    parameters: tuple[Tensor, Tensor | None],
    geometry: Geometry,
) -> Tensor:
    weight, bias = parameters
    recording.examples_of(input, rows=1)
    tap = recording.tap(output)
    if recording.trains(weight):
        inputs = recording.hold(input)
        recording.use(weight, tap, lambda grad: Patches(inputs, grad, weight.shape, geometry))
    recording.use(bias, tap, lambda grad: ExplicitGradients(grad.flatten(2).sum(dim=2)))
    return output


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _padding(padding: str | int | tuple[int, ...], kernel: Pair, dilation: Pair) -> Pair:
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "valid":
        return (0, 0)
    around = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if any(total % 2 for total in around):
        raise UnsupportedError("a convolution with asymmetric padding")
    return (around[0] // 2, around[1] // 2)


class Patches(InProducts):
    """G_i = Σ_t y_t ⊗ (patch of x below output pixel t)."""

    def __init__(self, inputs: Tensor, grad: Tensor, shape: torch.Size, geometry: Geometry) -> None:
        """Keep the layer's input (b, c, …) and the gradient of its output (b, o, …)."""
        self.shape, self.geometry = shape, geometry
        self.inputs, self.grad = (x.unsqueeze(2) if x.ndim == 3 else x for x in (inputs, grad))
        self.elements = inputs.shape[1:].numel() + grad.shape[1:].numel()
        self.workspace = self.rows * math.prod(shape[1:])

    @property
    def rows(self) -> int:
        return math.prod(self.grad.shape[2:])

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        if scaled or self.geometry.groups > 1:
            return False
        if self.geometry.by_pixels:
            (outputs, inputs), kernel = self.shape[:2], math.prod(self.geometry.kernel)
            products = total**2 * (inputs + outputs + OVERHEAD + 2 * kernel)
            weights = inputs * outputs * kernel
            return products + total * weights * keeps < (total + ELEMENT) * weights
        return linear_in_products(total, self.shape[0], math.prod(self.shape[1:]), keeps=keeps)

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Patches) and other.geometry == self.geometry

    def instantiate(self, piece: Piece) -> Tensor:
        inputs, grad = piece.cut(self.inputs), piece.cut(self.grad)
        return add_up(piece.grouped(self._each(inputs, grad))).reshape(-1, *self.shape)

    def _each(self, inputs: Tensor, grad: Tensor) -> Tensor:
        """Return each example's gradient, shape (examples, o, c, …).

        A grouped convolution with one group per example is two to three times as fast as matrix
        products of unfolded patches, except on maps of a few pixels.
        """
        if self.rows <= FEW_PIXELS and self.geometry.groups == 1:
            return grad.flatten(2) @ self.geometry.patches(inputs).mT
        count, outputs = grad.shape[:2]
        weights = grad.new_empty(()).expand(count * outputs, *self._kernel_shape)
        return self._gradient(
            inputs.reshape(1, -1, *inputs.shape[2:]),
            grad.reshape(1, -1, *grad.shape[2:]),
            weights,
            count * self.geometry.groups,
        ).view(count, outputs, *self._kernel_shape)

    def _gradient(self, inputs: Tensor, grad: Tensor, weight: Tensor, groups: int) -> Tensor:
        g = self.geometry
        gradients = torch.ops.aten.convolution_backward(
            grad, inputs, weight, None, g.stride, g.padding, g.dilation,
            False, (0, 0), groups, (False, True, False),
        )  # fmt: skip
        gradient: Tensor = gradients[1]
        return gradient

    @property
    def _kernel_shape(self) -> torch.Size:
        return torch.Size((self.shape[1], *self.geometry.kernel))

    def add(self, factors: Tensor, into: Tensor) -> None:
        inputs, grad, shape = self.inputs, self.grad, factors.view(-1, 1, 1, 1)
        if inputs[0].numel() < grad[0].numel():
            inputs = inputs * shape
        else:
            grad = grad * shape
        weight = into.view(-1, *self._kernel_shape)
        weight += self._gradient(inputs, grad, weight, self.geometry.groups)

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Tensor:
        assert isinstance(other, Patches)
        grad, grad_ = (piece.rows(x).flatten(3).mT.flatten(1, 2) for x in (self.grad, other.grad))
        products = self._patch_products(piece.rows(self.inputs), piece.rows(other.inputs))
        return add_pairs(products, gram(grad, grad_), same=other is self)

    def _patch_products(self, images: Tensor, images_: Tensor) -> Tensor:
        """Return the inner products of all patches of two (n, m, c, H, W) → (n, m·P, m·P)."""
        g = self.geometry
        if not g.by_pixels:
            patches, patches_ = (
                g.patches(x.flatten(0, 1)).mT.reshape(len(x), -1, self.shape[1:].numel())
                for x in (images, images_)
            )
            return gram(patches, patches_)
        n, m, _, height, width = images.shape
        pixels = gram(*(x.flatten(3).mT.flatten(1, 2) for x in (images, images_)))
        return self._sum_over_kernel(pixels.view(n, m, height, width, m, height, width))

    def _sum_over_kernel(self, pixels: Tensor) -> Tensor:
        """Sum inner products of pixels into those of patches, for stride 1.

        The groups come last: rows of a few pixels would be added a few numbers at a time.
        """
        g = self.geometry
        (high, wide), (dy, dx) = g.padding, g.dilation
        groups_last = pixels.permute(1, 2, 3, 4, 5, 6, 0).contiguous()
        pixels = pad(groups_last, (0, 0, wide, wide, high, high, 0, 0, wide, wide, high, high))
        rows, columns = self.grad.shape[2:]
        total: Tensor | None = None
        for y in range(0, g.kernel[0] * dy, dy):
            for x in range(0, g.kernel[1] * dx, dx):
                down, across = slice(y, y + rows), slice(x, x + columns)
                part = pixels[:, down, across, :, down, across]
                total = part.clone() if total is None else total.add_(part)
        assert total is not None
        side = total.shape[0] * rows * columns
        return total.reshape(side, side, -1).permute(2, 0, 1).contiguous()
