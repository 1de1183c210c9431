"""Gradient engines, which turn a batch of examples into a clipped sum: the contract, and vmap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from clipnoise.core.state import split
from clipnoise.data.several import arguments, call, closed, opened, outputs_of
from clipnoise.errors import UserError
from clipnoise.gradients.apart import adds_up, keeps_apart
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import ExampleDropout, Masks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.core.clipping import Clipping
    from clipnoise.data.several import Inputs
    from clipnoise.fields import Precision

    Losses = Callable[[Tensor, Tensor], Tensor]
    Around = Callable[[ExampleDropout], AbstractContextManager[Any]]


class FlatModel:
    """A network whose trained parameters are views into one vector θ of shape (d,).

    Frozen parameters are not part of θ; a parameter used in several places counts once. Move the
    network to its device first: moving it later would detach its parameters from θ.

    Attributes:
        network: the network itself.
        theta: θ, shape (d,); writing into it changes the network.
        names: the trained parameters, in the order in which θ holds them.
        shapes: their shapes.
        parameters: the parameters themselves.
        layers: the places in `names` of the parameters of each module that has some of its own.
        uses: every name under which a module holds a trained parameter, with that of the parameter
            in `names`. A module that the network holds twice counts once.
    """

    def __init__(self, network: nn.Module) -> None:
        """Gather the trained parameters of a network into one vector.

        Args:
            network: changed in place: its parameters become views into `theta`.

        Raises:
            UserError: nothing is trained, or the parameters differ in dtype or device.
        """
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        kinds = {(p.dtype, p.device) for p in trained.values()}
        if len(kinds) != 1:
            present = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise UserError(
                "model: the trained parameters must exist and share one dtype and device; "
                f"found: {present or 'none'}."
            )
        self.network = network
        self.names = tuple(trained)
        name_of = {id(p): name for name, p in trained.items()}
        self.uses = {
            f"{path}.{name}" if path else name: name_of[id(parameter)]
            for path, module in network.named_modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in name_of
        }
        self.parameters = tuple(trained.values())
        self.shapes = tuple(p.shape for p in self.parameters)
        self._sizes = [shape.numel() for shape in self.shapes]
        modules = [name.rpartition(".")[0] for name in self.names]
        self.layers = [
            [place for place, _ in members]
            for _, members in groupby(enumerate(modules), key=itemgetter(1))
        ]
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, view in zip(self.parameters, self.split(self.theta), strict=True):
            parameter.data = view

    @property
    def layer_sizes(self) -> list[int]:
        """How many coordinates of θ each layer has; they lie next to each other."""
        return [sum(self.shapes[place].numel() for place in layer) for layer in self.layers]

    def load(self, theta: Tensor) -> None:
        """Set the network's parameters, in place.

        Args:
            theta: shape (d,).
        """
        self.theta.copy_(theta)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector of shape (d,) in the shapes of the parameters."""
        return split(vector, self.shapes, self._sizes)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a vector by parameter name.

        Args:
            vector: shape (d,).
        """
        return dict(zip(self.names, self.split(vector), strict=True))

    def call(self, views: dict[str, Tensor], inputs: Inputs) -> Tensor:
        """Run the network with other parameters, which `torch.func` can differentiate.

        Args:
            views: the parameters by name, as `views` returns them.
            inputs: what the network takes.
        """
        # With two names of one module, functional_call would not put its parameters back.
        places = {place: views[name] for place, name in self.uses.items()}
        return outputs_of(
            functional_call(self.network, places, *arguments(inputs), tie_weights=False)
        )

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors in the shapes of the parameters as one vector, the inverse of `split`."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def join_rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of shape (b, *parameter shape) as one matrix of shape (b, d)."""
        return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1)


class GradientEngine(ABC):
    """Turns a physical batch into Σ clip(v_i) at any points.

    Every engine defines `per_example_gradients`, which needs memory for b·d numbers. An engine that
    can form the clipped sum without them overrides `clipped_sum` as well.

    Attributes:
        name: the engine's name in result files.
        together: whether the network runs on a whole batch, because its layers are known to keep
            the examples apart. Any other one runs under vmap, which hides their axis.
        piece: how many per-example gradients are held at once; None for the whole physical batch.
        flat: the network, its trained parameters as one vector.
        losses: (outputs, targets) → the loss of each example, shape (b,).
        precision: of the forward and backward passes. Clipping is done in the dtype of the
            parameters, so that low precision cannot make a clipped vector longer than C.
    """

    name: ClassVar[str]
    piece: int | None = None
    precision: Precision = "float32"

    def __init__(self, network: nn.Module, losses: Losses) -> None:
        """Wrap a network that is on its device and in the mode in which it is trained."""
        self.flat = FlatModel(network)
        self.losses = losses
        self.together = keeps_apart(network)
        self._adds_up = adds_up(losses)

    @property
    def network(self) -> nn.Module:
        """The network, at the parameters loaded last."""
        return self.flat.network

    def outputs(self, network: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Run the network at the precision of the passes.

        Args:
            network: a function that calls it.
            arguments: passed to the function.

        Returns:
            The outputs, in the dtype of the parameters.
        """
        theta = self.flat.theta
        if self.precision == "float32":
            outputs = network(*arguments)
            return outputs if outputs.dtype == theta.dtype else outputs.to(theta.dtype)
        with torch.autocast(theta.device.type, torch.bfloat16, cache_enabled=False):
            return network(*arguments).to(theta.dtype)

    @abstractmethod
    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return the gradient of each example's loss.

        Args:
            inputs: shape (b, …), b ≥ 1, or several tensors of such shapes.
            targets: shape (b, …).
            theta: the parameters at which the gradients are taken, shape (d,).
            masks: the key and the indices that decide dropout masks; None stands for key 0 and the
                indices 0 … b−1.

        Returns:
            Shape (b, d); zero for parameters that the loss does not use.
        """

    def clipped_sum(self, inputs: Inputs, targets: Tensor, clipping: Clipping) -> Tensor:
        """Return Σ clip(v_i) over a physical batch.

        A vector that is not finite, or whose norm is not, counts as zero.

        Args:
            inputs: shape (b, …); b may be 0.
            targets: shape (b, …).
            clipping: where gradients are taken, and how the vectors are formed and bounded.

        Returns:
            Shape (d,), or (1,) of losses, with the K extra coordinates; zero for an empty batch.
        """
        losses = clipping.of.losses
        if clipping.clip_norm is None and not losses:
            return self._linear_sum(inputs, targets, clipping)
        take = self.per_example_losses if losses else self.per_example_gradients
        total = clipping.of.zeros(self.flat.theta)
        for chosen, part in parts(clipping, len(inputs), self.piece or max(1, len(inputs))):
            x, y = inputs[chosen], targets[chosen]
            masks = Masks.of(part, len(x))
            gradients = [take(x, y, theta, masks) for theta in part.points]
            total += clipped_sum(gradients, part, self.flat.layer_sizes)
        return total

    def examples_of(self, batch: Tensor) -> int:
        """Return how many per-example gradients a batch of the sampler takes at each point."""
        return len(batch)

    def per_example_losses(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks
    ) -> Tensor:
        """Return the loss of each example, by a forward pass alone, shape (b, 1)."""
        self.flat.load(theta)
        with torch.no_grad():
            return self.losses_of_each(inputs, targets, masks).unsqueeze(1)

    def losses_of_each(
        self,
        inputs: Inputs,
        targets: Tensor,
        masks: Masks,
        around: Around = lambda dropout: dropout,
    ) -> Tensor:
        """Run a forward pass in which no example can reach another.

        Args:
            inputs: shape (b, …), b ≥ 1.
            targets: shape (b, …).
            masks: of the examples.
            around: returns the context in which the network runs, given the dropout of the pass.

        Returns:
            The loss of each example, shape (b,).
        """

        def alone(input: Any, target: Tensor, index: Tensor) -> Tensor:
            with around(masks.active(hidden=index)):
                outputs = self.outputs(call, self.network, closed(input).unsqueeze(0))
            return self.losses(outputs, target.unsqueeze(0)).squeeze(0)

        def loss_alone(output: Tensor, target: Tensor) -> Tensor:
            return self.losses(output.unsqueeze(0), target.unsqueeze(0)).squeeze(0)

        if not self.together:
            index = masks.examples.to(inputs.device)
            return vmap(alone, randomness="error")(opened(inputs), targets, index)
        with around(masks.active()):
            outputs = self.outputs(call, self.network, inputs)
        if self._adds_up:
            return self.losses(outputs, targets)
        return vmap(loss_alone, randomness="error")(outputs, targets)

    def _linear_sum(self, inputs: Inputs, targets: Tensor, clipping: Clipping) -> Tensor:
        """Return Σ v_i without clipping: linear in the gradients, so plain autograd suffices."""
        total, masks = torch.zeros_like(self.flat.theta), Masks.of(clipping, len(inputs))
        for weight, theta in zip(clipping.weights, clipping.points, strict=True):
            total += weight * self.summed_gradient(inputs, targets, theta, masks)
        if clipping.offset is not None:
            total += len(inputs) * clipping.offset
        if clipping.scale is not None:
            total *= clipping.scale
        return total / clipping.group_size

    def summed_gradient(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return the gradient of the summed loss by plain autograd, shape (d,)."""
        if len(inputs) == 0:
            return torch.zeros_like(theta)
        self.flat.load(theta)
        with torch.enable_grad(), (masks or Masks.first(len(inputs))).active():
            loss = self.losses(self.outputs(call, self.network, inputs), targets).sum()
        gradients = torch.autograd.grad(loss, self.flat.parameters, materialize_grads=True)
        return self.flat.join(gradients)

    def mean_gradient(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return the mean gradient of public examples by plain autograd.

        Args:
            inputs: shape (b, …).
            targets: shape (b, …).
            theta: the parameters at which it is taken, shape (d,).
            masks: as in `per_example_gradients`.

        Returns:
            Shape (d,); zero for an empty batch.
        """
        return self.summed_gradient(inputs, targets, theta, masks) / max(1, len(inputs))


class VmapEngine(GradientEngine):
    """Per-example gradients by vmap over the gradient of one example's loss."""

    name: ClassVar[str] = "vmap"

    def __init__(self, network: nn.Module, losses: Losses) -> None:
        super().__init__(network, losses)
        # Each call costs 0.6 ms, and gradients that do not fit in the processor's cache cost more:
        # 32 examples at a time suit large networks, and as many as fit in 4 MB suit small ones.
        self.piece = max(32, 2**20 // self.flat.theta.numel())

    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        masks = masks or Masks.first(len(inputs))
        key = masks.key

        def loss(views: dict[str, Tensor], input: Any, target: Tensor, index: Tensor) -> Tensor:
            with Masks(key, index.unsqueeze(0)).active():
                outputs = self.outputs(self.flat.call, views, closed(input).unsqueeze(0))
            return self.losses(outputs, target.unsqueeze(0)).squeeze(0)

        # Nothing may be drawn from torch's global stream, where one example would shift the others.
        gradient_of_each = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="error")
        views = self.flat.views(theta.detach())
        index = masks.examples.to(inputs.device)
        # vmap has no rule for the kernel of attention on a CPU, and would go example by example, as
        # it does in bfloat16: written out, attention has no backward pass under autocast there.
        written_out = theta.device.type == "cpu" and self.precision == "float32"
        with sdpa_kernel(SDPBackend.MATH) if written_out else nullcontext():
            gradients = gradient_of_each(views, opened(inputs), targets, index)
        return self.flat.join_rows([gradients[name] for name in self.flat.names])


class OneByOne(GradientEngine):
    """Per-example gradients by their definition: one forward and one backward pass for each.

    No two examples are ever in the network at once. It takes whatever autograd does, slowly.
    """

    name: ClassVar[str] = "one by one"
    piece = 32

    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        masks = masks or Masks.first(len(inputs))
        return torch.stack(
            [
                self.summed_gradient(inputs[one], targets[one], theta, masks.reordered(one))
                for one in torch.arange(len(inputs)).unsqueeze(1)
            ]
        )

    def losses_of_each(
        self,
        inputs: Inputs,
        targets: Tensor,
        masks: Masks,
        around: Around = lambda dropout: dropout,
    ) -> Tensor:
        each = []
        for one in torch.arange(len(inputs)).unsqueeze(1):
            with around(masks.reordered(one).active()):
                outputs = self.outputs(call, self.network, inputs[one])
            each.append(self.losses(outputs, targets[one]))
        return torch.cat(each)


def pieces(count: int, size: int) -> Iterator[slice]:
    """Cut a batch into pieces of at most `size` examples; an empty batch may have size 0.

    Yields:
        Slices that cover the batch in order; none for an empty batch.
    """
    for start in range(0, count, max(size, 1)):
        yield slice(start, min(start + size, count))


def whole_groups(groups: Tensor, size: int) -> Iterator[slice]:
    """Cut a batch into pieces of bounded size without splitting a micro-batch.

    Args:
        groups: the micro-batch of each example, shape (b,); those of one micro-batch are adjacent.
        size: most examples in a piece; a larger micro-batch forms a piece by itself.

    Yields:
        Slices that cover the batch in order; none for an empty batch.
    """
    ends = torch.unique_consecutive(groups, return_counts=True)[1].cumsum(0).tolist()
    start = 0
    while start < len(groups):
        fitting = bisect_right(ends, start + size) - 1
        stop = ends[max(fitting, bisect_right(ends, start))]
        yield slice(start, stop)
        start = stop


def parts(clipping: Clipping, count: int, size: int) -> Iterator[tuple[slice, Clipping]]:
    """Cut a batch into pieces of bounded size, each with its part of the clipping.

    Args:
        clipping: for the whole batch.
        count: examples in the batch.
        size: most examples in a piece, unless a micro-batch has more.
    """
    groups = clipping.groups
    for chosen in pieces(count, size) if groups is None else whole_groups(groups, size):
        whole = chosen.stop - chosen.start == count
        yield chosen, clipping if whole else part_of(clipping, chosen)


def part_of(clipping: Clipping, chosen: slice | Tensor) -> Clipping:
    """Return the clipping of some examples of a batch."""
    groups, examples = clipping.groups, clipping.examples
    return replace(
        clipping,
        groups=None if groups is None else groups[chosen],
        examples=None if examples is None else examples[chosen],
    )
