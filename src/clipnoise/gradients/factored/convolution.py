"""Convolutions as linear layers on patches; inner products of patches are sums over pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, pad

from clipnoise.gradients.apart import UnsupportedError
from clipnoise.gradients.factored.linear import linear_in_products
from clipnoise.gradients.factored.recording import Recording
from clipnoise.gradients.factored.uses import (
    ELEMENT,
    OVERHEAD,
    ExplicitGradients,
    InProducts,
    Piece,
    Squares,
    Use,
    add_pairs,
    gram,
    scaled_pairs,
    scaled_pairs_pay,
    times_larger,
)

Pair = tuple[int, int]


FEW_CHANNELS = 32  # patches of more cost more than inner products of their pixels
SMALL_MAP = 16  # output pixels, of which a product of patches costs less than a convolution
FORMED = 2**22  # elements of patches that are formed at once
HELD = 2**19  # elements of patches that are kept from the norms to the weighted sum


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

    def windows(self, images: Tensor) -> Tensor:
        """Return a view of what lies below each output pixel: (n, c, H, W) → (n, c, k, k, P, P′).

        A copy of it takes less time than `torch.nn.functional.unfold`.
        """
        (high, wide), (down, across), (dy, dx) = self.padding, self.stride, self.dilation
        padded = pad(images, (wide, wide, high, high)) if high or wide else images
        sizes = zip(padded.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        outputs = [(size - reach * (k - 1) - 1) // step + 1 for size, k, step, reach in sizes]
        n, c, y, x = padded.stride()
        strides = (n, c, y * dy, x * dx, y * down, x * across)
        return padded.as_strided((*images.shape[:2], *self.kernel, *outputs), strides)

    def patches(self, images: Tensor) -> Tensor:
        """Return the patch below each output pixel: (n, c, H, W) → (n, c·k·k, P)."""
        return self.windows(images).flatten(4).flatten(1, 3)

    def patches_as_rows(self, images: Tensor) -> Tensor:
        """Return the same patches, channels last: (n, c, H, W) → (n, P, k·k·c)."""
        windows = self.windows(images.contiguous(memory_format=torch.channels_last))
        return windows.permute(0, 4, 5, 2, 3, 1).flatten(3).flatten(1, 2)


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
    _require_batch(input, weight)
    kernel, dilations = (weight.shape[2], weight.shape[3]), _pair(dilation)
    input, around = _padded(input, padding, kernel, dilations)
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
    _require_batch(input, weight)
    kernel, dilations = (1, weight.shape[2]), (1, _pair(dilation)[1])
    input, (_, wide) = _padded(input, padding, kernel, dilations)
    g = Geometry(kernel, (1, _pair(stride)[1]), (0, wide), dilations, groups)
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
    recording.examples_of(input, single=True)
    tap = recording.tap(output)
    if recording.trains(weight):
        inputs = recording.hold(input)
        recording.use(weight, tap, lambda grad: Patches(inputs, grad, weight.shape, geometry))
    recording.use(bias, tap, lambda grad: ExplicitGradients(grad.flatten(2).sum(dim=2)))
    return output


def _require_batch(input: Tensor, weight: Tensor) -> None:
    if input.ndim != weight.ndim:  # PyTorch would take the axis of the examples for the channels
        raise UnsupportedError("a convolution of one example without an axis for the batch")


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _padded(
    input: Tensor, padding: str | int | tuple[int, ...], kernel: Pair, dilation: Pair
) -> tuple[Tensor, Pair]:
    """Return the input and how it is to be padded on both sides.

    Where `same` needs one pixel more at the end of an axis, the input returned has it.
    """
    if not isinstance(padding, str):
        return input, _pair(padding)
    if padding == "valid":
        return input, (0, 0)
    high, wide = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    if high % 2 or wide % 2:
        input = pad(input, (0, wide % 2, 0, high % 2)[: 2 * (input.ndim - 2)])
    return input, (high // 2, wide // 2)


class Patches(InProducts):
    """G_i = Σ_t y_t ⊗ (patch of x below output pixel t)."""

    def __init__(self, inputs: Tensor, grad: Tensor, shape: torch.Size, geometry: Geometry) -> None:
        """Keep the layer's input (b, c, …) and the gradient of its output (b, o, …)."""
        self.shape, self.geometry = shape, geometry
        self.inputs, self.grad = (x.unsqueeze(2) if x.ndim == 3 else x for x in (inputs, grad))
        self.elements = inputs.shape[1:].numel() + grad.shape[1:].numel()
        self.workspace = self.rows * math.prod(shape[1:]) * geometry.groups

    @property
    def rows(self) -> int:
        return math.prod(self.grad.shape[2:])

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        if self.geometry.groups > 1:
            return False
        if scaled:
            return scaled_pairs_pay(total, keeps=keeps)
        if self.geometry.by_pixels:
            (outputs, inputs), kernel = self.shape[:2], math.prod(self.geometry.kernel)
            products = total**2 * (inputs + outputs + OVERHEAD + 2 * kernel)
            weights = inputs * outputs * kernel
            return products + total * weights * keeps < (total + ELEMENT) * weights
        return linear_in_products(total, self.shape[0], math.prod(self.shape[1:]), keeps=keeps)

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Patches) and other.geometry == self.geometry

    @cached_property
    def held(self) -> Tensor | None:
        """The patches as rows, (b, P, k·k·c), if a weight of few channels makes them small."""
        elements = len(self.inputs) * self.rows * math.prod(self.shape[1:])
        small = self.shape[1] <= FEW_CHANNELS and elements <= HELD and self.geometry.groups == 1
        return self.geometry.patches_as_rows(self.inputs) if small else None

    def instantiate(self, piece: Piece) -> Tensor:
        groups = self.geometry.groups
        if groups == 1:
            return self.by_rows(piece)(slice(None))
        patches, grad = self.geometry.patches(piece.cut(self.inputs)), piece.cut(self.grad)
        patches, grad = (x.reshape(len(x), groups, -1, self.rows) for x in (patches, grad))
        return piece.added_up(grad @ patches.mT).reshape(-1, *self.shape)

    def by_rows(self, piece: Piece) -> Callable[[slice], Tensor]:
        if self.geometry.groups > 1:
            return super().by_rows(piece)
        patches = self.geometry.patches(piece.cut(self.inputs)).mT
        grad = piece.cut(self.grad).flatten(2)
        shape = (piece.count, -1, *self.shape[1:])
        return lambda rows: piece.added_up(grad[:, rows] @ patches).view(shape)

    def add(self, factors: Tensor, into: Tensor) -> None:
        inputs, grad, shape = self.inputs, self.grad, factors.view(-1, 1, 1, 1)
        weight = into.view(-1, self.shape[1], *self.geometry.kernel)
        if self.held is not None or (self.rows <= SMALL_MAP and self.geometry.groups == 1):
            self._add_patches(grad * shape, weight)
            return
        if inputs[0].numel() < grad[0].numel():
            inputs = inputs * shape
        else:
            grad = grad * shape
        g = self.geometry
        gradients = torch.ops.aten.convolution_backward(
            grad, inputs, weight, None, g.stride, g.padding, g.dilation,
            False, (0, 0), g.groups, (False, True, False),
        )  # fmt: skip
        weight += gradients[1]

    def _add_patches(self, grad: Tensor, weight: Tensor) -> None:
        """Add Σ y_t ⊗ patch over all examples and pixels, as a product of matrices."""
        parts: Iterable[tuple[Tensor, Tensor]]
        if self.held is not None:  # of all examples
            parts = [(grad, self.held)]
        else:
            formed = times_larger(grad) * FORMED
            fitting = max(1, formed // (self.rows * math.prod(self.shape[1:])))
            inputs = map(self.geometry.patches_as_rows, torch.split(self.inputs, fitting))
            parts = zip(torch.split(grad, fitting), inputs, strict=True)
        for some, rows in parts:
            total = some.transpose(0, 1).flatten(1) @ rows.flatten(0, 1)
            weight += total.view(len(weight), *self.geometry.kernel, -1).permute(0, 3, 1, 2)

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        assert isinstance(other, Patches)
        grad, grad_ = (piece.rows(x).flatten(3).mT.flatten(1, 2) for x in (self.grad, other.grad))
        if square is not None:
            rows, rows_ = (grad, self._patches(piece)), (grad_, other._patches(piece))
            return scaled_pairs(rows, rows_, square.flatten(1), same=other is self)
        lengths = self.shape[0] + math.prod(self.shape[1:])
        products = self._patch_products(other, piece), gram(grad, grad_)
        return add_pairs(*products, lengths, same=other is self)

    def _patches(self, piece: Piece) -> Tensor:
        """Return the patches of each group as rows, (n, m·P, c·k·k)."""
        patches = self.geometry.patches(piece.cut(self.inputs)).mT
        return piece.grouped(patches).flatten(1, 2)

    def _patch_products(self, other: Patches, piece: Piece) -> Tensor:
        """Return the inner products of all patches of each group, (n, m·P, m·P)."""
        if self.held is not None and other.held is not None:
            return gram(piece.joined(self.held), piece.joined(other.held))
        if not self.geometry.by_pixels:
            return gram(self._patches(piece), other._patches(piece))
        images, images_ = piece.rows(self.inputs), piece.rows(other.inputs)
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
