"""Checks that each example of a batch has a gradient that does not depend on the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from clipnoise.errors import UserError
from clipnoise.gradients.dropout import Masks

if TYPE_CHECKING:
    from torch import Tensor

INSTEAD = "Use GroupNorm or LayerNorm, which normalise each example separately."


def check_model(network: nn.Module, inputs: Tensor) -> None:
    """Reject a network in which examples of a batch influence each other.

    Parameters, buffers, modes and random streams are left as they were.

    Args:
        network: on its device.
        inputs: one or more examples; only their shape, dtype and device are used.

    Raises:
        UserError: names the smallest module that mixes examples or draws random numbers that they
            share, and what to use instead.
    """
    _reject_batch_statistics(network)
    _reject_global_randomness(network, made_up(inputs, 2))
    _reject_mixing(network, inputs)


def _reject_batch_statistics(network: nn.Module) -> None:
    """Reject normalisation layers that use or accumulate statistics of the batch."""
    for path, module in network.named_modules():
        accumulates = isinstance(module, _InstanceNorm) and module.track_running_stats
        if isinstance(module, _BatchNorm) or accumulates:
            raise UserError(
                f"model: {path or 'the network'} is a {type(module).__name__}: its statistics mix "
                f"the examples of a batch, so per-example gradients do not exist. {INSTEAD}"
            )


def _reject_global_randomness(network: nn.Module, inputs: Tensor) -> None:
    """Reject a network that draws random numbers from torch's global stream as it trains."""
    with torch.no_grad(), _mode(network, True), Masks.first(len(inputs)).active():
        drawn = _layers_that_draw(network, inputs)
    if drawn:
        raise UserError(
            f"model: {drawn[0] or 'the network'} draws random numbers from torch's global stream, "
            "so what one example adds would depend on the others in its batch. Use "
            "torch.nn.functional.dropout, whose masks are drawn for each example by itself here."
        )


def _layers_that_draw(network: nn.Module, inputs: Tensor) -> list[str]:
    """Return the modules whose forward pass moves torch's global stream, the innermost first."""
    drawn: list[str] = []
    before: dict[str, Tensor] = {}
    handles = []

    def position() -> Tensor:
        return torch.cuda.get_rng_state(inputs.device) if inputs.is_cuda else torch.get_rng_state()

    for path, module in network.named_modules():

        def enter(_: nn.Module, __: object, path: str = path) -> None:
            before[path] = position()

        def leave(_: nn.Module, __: object, ___: object, path: str = path) -> None:
            if not torch.equal(before[path], position()):
                drawn.append(path)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
            functional_call(network, buffers, (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    return drawn


def _reject_mixing(network: nn.Module, inputs: Tensor) -> None:
    """Reject a network in which changing one made-up example changes the output of another."""
    probe = _Probe(network, inputs)
    path = probe.mixing_module()
    if path is None and inputs.is_floating_point() and probe.gradients_mix():
        path = ""
    if path is None and probe.depends_on_batch_size():
        path = ""
    if path is not None:
        raise UserError(
            f"model: {path or 'the network'} mixes examples: one example's output depends on the "
            f"others in its batch, so clipping cannot bound what one example adds. {INSTEAD}"
        )
    buffer = probe.remembering_buffer()
    if buffer is not None:
        raise UserError(
            f"model: the buffer {buffer} changes with the examples in each forward pass: it would "
            f"release private data without noise. {INSTEAD}"
        )


class _Probe:
    """A network at perturbed parameters, and two batches that differ in their second example.

    The parameters are perturbed because a layer whose weights start at zero would hide whatever
    comes before it.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.network = network
        self.state = {
            name: p.detach() + 0.05 * normal(p) if p.is_floating_point() else p.detach()
            for name, p in network.named_parameters()
        }
        first, second, third = made_up(inputs, 3)
        other = 3 * third if inputs.is_floating_point() else third
        self.batch, self.changed = torch.stack([first, second]), torch.stack([first, other])

    def run(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the network on copies of its state; return its outputs and its buffers afterwards."""
        buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        with Masks.first(len(inputs)).active():
            outputs = functional_call(self.network, {**self.state, **buffers}, (inputs,))
        return outputs, buffers

    def mixing_module(self) -> str | None:
        """Return the path of the first module that turns equal first rows into different ones."""
        with _mode(self.network, True), torch.no_grad():
            before, after = (self._first_rows(batch) for batch in (self.batch, self.changed))
        if [path for path, *_ in before] != [path for path, *_ in after]:
            return ""  # the second example decides which modules the first one runs through
        for (path, input, output), (_, new_input, new_output) in zip(before, after, strict=True):
            if _close(input, new_input) and not _close(output, new_output):
                return path
        return None

    def _first_rows(self, batch: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """Return each module's path and the first rows of its input and output, as they finish."""
        rows: list[tuple[str, Tensor, Tensor]] = []

        def recorder(path: str) -> object:
            def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
                if inputs and all(_is_batch(value) for value in (inputs[0], output)):
                    rows.append((path, inputs[0][0].clone(), output[0].clone()))  # type: ignore[index]

            return hook

        handles = [
            module.register_forward_hook(recorder(path))
            for path, module in self.network.named_modules()
        ]
        try:
            self.run(batch)
        finally:
            for handle in handles:
                handle.remove()
        return rows

    def gradients_mix(self) -> bool:
        """Return whether one example's output has a gradient with respect to another's input."""
        with _mode(self.network, True), torch.enable_grad():
            inputs = self.batch.clone().requires_grad_()
            outputs, _ = self.run(inputs)
            for i, j in ((0, 1), (1, 0)):
                (gradient,) = torch.autograd.grad(
                    outputs[i].sum(), inputs, retain_graph=True, materialize_grads=True
                )
                if bool((gradient[j] != 0).any()):
                    return True
        return False

    def depends_on_batch_size(self) -> bool:
        """Return whether an example's output alone differs from its output in a batch of two."""
        with _mode(self.network, False), torch.no_grad():
            alone, together = self.run(self.batch[:1])[0], self.run(self.batch)[0][:1]
        return not _close(alone, together)

    def remembering_buffer(self) -> str | None:
        """Return the name of a buffer whose final value depends on the examples, if any."""
        with _mode(self.network, True), torch.no_grad():
            before, after = self.run(self.batch)[1], self.run(self.changed)[1]
        return next((name for name in before if not torch.equal(before[name], after[name])), None)


def normal(like: Tensor) -> Tensor:
    """Return standard normal numbers, equal at each call, in a tensor's shape, dtype and device."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=draws).to(like)


def made_up(inputs: Tensor, count: int) -> Tensor:
    """Make up examples, for trying a network without using any private value.

    Args:
        inputs: shape (n, …); only its shape, dtype and device are used.
        count: how many to make.

    Returns:
        Shape (count, …): normal numbers; for integers 0 and 1 alternately, since every vocabulary
        has these two.
    """
    empty = inputs.new_empty(count, *inputs.shape[1:])
    if inputs.is_floating_point():
        return normal(empty)
    parity = torch.arange(count, device=inputs.device).to(inputs.dtype) % 2
    return empty.copy_(parity.view(-1, *[1] * (inputs.ndim - 1)).expand_as(empty))


@contextmanager
def _mode(network: nn.Module, training: bool) -> Iterator[None]:
    """Put every module into training or evaluation mode, and back afterwards."""
    modes = {module: module.training for module in network.modules()}
    try:
        network.train(training)
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _is_batch(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == 2


def _close(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal up to the rounding of different kernels."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    scale = float(first.abs().max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=0, atol=1e-5 * scale, equal_nan=True)
