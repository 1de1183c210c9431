"""Per-example gradients by Opacus' hooks: the reference that users know."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import torch

from clipnoise.gradients.engine import GradientEngine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.gradients.engine import Losses


class HooksEngine(GradientEngine):
    """Per-example gradients by Opacus' GradSampleModule, enabled only while they are taken.

    Hooks see parameters that a layer uses in its own forward. One that is used outside its layer
    gets no gradient from them: compare with `summed_gradient` before trusting a new network.
    """

    name: ClassVar[str] = "hooks"

    def __init__(self, network: nn.Module, losses: Losses) -> None:
        from opacus.grad_sample import GradSampleModule

        super().__init__(network, losses)
        self._hooked = GradSampleModule(network, batch_first=True, loss_reduction="sum")
        self._hooked.disable_hooks()

    def per_example_gradients(self, inputs: Tensor, targets: Tensor, theta: Tensor) -> Tensor:
        if not self.network.training:
            raise RuntimeError("hooks take no gradients from a network in evaluation mode")
        self.flat.load(theta)
        self._hooked.enable_hooks()
        try:
            with torch.enable_grad(), _quiet():
                torch.autograd.backward(
                    self.losses(self.outputs(self._hooked, inputs), targets).sum()
                )
            return self.flat.join_rows([_rows(p, len(inputs)) for p in self.flat.parameters])
        finally:
            self._hooked.disable_hooks()
            self._forget()

    def summed_gradient(self, inputs: Tensor, targets: Tensor, theta: Tensor) -> Tensor:
        with _quiet():
            return super().summed_gradient(inputs, targets, theta)

    def _forget(self) -> None:
        """Drop what the hooks keep of a batch, also of outputs that the loss does not use."""
        self._hooked.zero_grad(set_to_none=True)
        for parameter in self.flat.parameters:
            parameter._forward_counter = 0  # type: ignore[attr-defined]
            vars(parameter).pop("_current_grad_sample", None)
        for module in self.network.modules():
            vars(module).pop("activations", None)
            vars(module).pop("max_batch_len", None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence a warning that matters to those who read input gradients in a hook; none does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def _rows(parameter: nn.Parameter, count: int) -> Tensor:
    rows: Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
    return parameter.new_zeros(count, *parameter.shape) if rows is None else rows
