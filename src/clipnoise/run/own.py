"""What is handed over as Python objects: a network and a loss, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from clipnoise.data.several import Several, call, shape_of
from clipnoise.data.signature import Input, Kind, Signature
from clipnoise.errors import UserError, explained
from clipnoise.gradients.checks import check_arguments, check_kinds, ending_of, made_up, unchanged
from clipnoise.methods.base import WithSideInformation
from clipnoise.privacy.units import Example, Unit, User
from clipnoise.run.procedure import Procedure

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Examples
    from clipnoise.data.several import Inputs

    Losses = Callable[[Tensor, Tensor], Tensor]

EXACT = {torch.float32, torch.float64}


@dataclass(frozen=True, kw_only=True)
class OwnProcedure(Procedure):
    """A procedure on examples that are handed over.

    Attributes:
        examples: n.
        users: N, how many users they belong to; None where nobody says whose they are.
    """

    examples: int
    users: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, WithSideInformation):
            self.method.side_information.check(None)
        if self.method.gradients_of != "loss":
            raise UserError(
                f"method: {self.method.id} does not train the loss that is given here; use it in a "
                "study."
            )

    @cached_property
    def unit(self) -> Unit:
        protects = self.method.local_training() is not None
        if not protects and self.users is None:
            return Example(count=self.examples)
        if protects and self.users is not None:
            return User(count=self.users)
        if protects:
            raise UserError(
                f"method: {self.method.id} protects users, but these examples have no user ids: "
                "give users, one id for each example."
            )
        raise UserError(
            f"users: {self.method.id} protects one example, and not all that a user has. Take a "
            "method that protects users, such as dp-fedavg, or leave users out."
        )


class PreparedNetwork:
    """A network as it was when its training was prepared: its layers and parameters."""

    def __init__(self, network: nn.Module) -> None:
        """Look at a network."""
        self._network = network
        self._layers, self._parameters = self._look()

    def require_unchanged(self) -> None:
        """Refuse what would be trained without effect, or not as it was checked.

        Raises:
            UserError: names the layer or the parameter that is another one than before.
        """
        layers, parameters = self._look()
        what = "model: it was moved, or its parameters were replaced, while it was trained"
        if (changed := _first_difference(self._layers, layers)) is not None:
            what = f"model: the layer {changed!r} was added, removed or replaced between steps"
        elif (name := _first_difference(self._parameters, parameters)) is not None:
            before, after = self._parameters.get(name), parameters.get(name)
            if before is not None and after is not None and before[0] == after[0]:
                done = "unfrozen" if after[1] else "frozen"
                what = f"model: {name!r} was {done} between steps, which has no effect"
        else:
            return
        raise UserError(
            f"{what}. Work with a copy of it, copy.deepcopy(model), or prepare another training."
        )

    def _look(self) -> tuple[dict[str, object], dict[str, tuple[int, bool]]]:
        layers: dict[str, object] = dict(self._network.named_modules(remove_duplicate=False))
        named = self._network.named_parameters(remove_duplicate=False)
        return layers, {name: (one.data_ptr(), one.requires_grad) for name, one in named}


def _first_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """Return the first name under which there is something else, or None."""
    return next((one for one in [*before, *after] if before.get(one) != after.get(one)), None)


def tried_out(network: nn.Module, losses: Losses, examples: Examples) -> Signature:
    """Run a network and a loss on made-up examples, and return what an example looks like.

    Args:
        network: on the CPU or another device.
        losses: (outputs, targets) → the loss of each example, shape (b,).
        examples: the private ones; only shapes and dtypes of one are used.

    Raises:
        UserError: the network or the loss fails, does not return tensors as it must, or mixes
            examples; the message says which.
    """
    check_kinds(network)
    first, target = examples.take(slice(1))
    check_arguments(network, first)
    device = next((p.device for p in network.parameters()), first.device)
    inputs = made_up(first, 3, ending=ending_of(network)).to(device)
    targets = target.new_zeros(3, *target.shape[1:]).to(device)
    targets[1:] = 1  # so that a weight that follows from the classes of a batch is noticed
    failing = f"model: fails on inputs of shape {shape_of(inputs)}"
    with explained(failing), unchanged(network), torch.no_grad():
        outputs = call(network.eval(), inputs)
    if not isinstance(outputs, torch.Tensor):
        raise UserError(
            "model: must return one tensor, or logits as models of transformers do; got "
            f"{type(outputs).__name__}."
        )
    low = {p.dtype for p in network.parameters() if p.requires_grad} - EXACT
    if low:
        raise UserError(
            f"model: {', '.join(map(str, low))} parameters would make clipping and noise inexact. "
            "Give float32 parameters; precision='bfloat16' speeds the passes up."
        )
    _check_losses(losses, outputs.requires_grad_(), targets)
    return _signature(inputs, outputs[0].numel())


def _signature(inputs: Inputs, outputs: int) -> Signature:
    """Return what an example looks like."""
    if isinstance(inputs, Several):
        parts = tuple(
            Input(name, tuple(one.shape[1:]))
            for name, one in zip(inputs.names, inputs.each, strict=True)
        )
        return Signature("several", (), outputs, parts=parts)
    numbers: Kind = "features" if inputs.ndim == 2 else "image"
    return Signature(
        kind=numbers if inputs.is_floating_point() else "tokens",
        shape=tuple(inputs.shape[1:]),
        outputs=outputs,
    )


def _check_losses(losses: Losses, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss that is not one number for each example, of its own output alone."""
    shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
    with explained(f"loss: fails on {shapes}"):
        each = losses(outputs, targets)
        alone = [losses(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
    shape, count = tuple(getattr(each, "shape", ())), len(outputs)
    if shape != (count,):
        raise UserError(
            f"loss: must return the loss of each example, shape (b,), but returns shape {shape} "
            f"for b = {count}. Most losses of torch do so with reduction='none'; average what is "
            "left over the other dimensions."
        )
    (gradient,) = torch.autograd.grad(each[0], outputs, retain_graph=True, materialize_grads=True)
    apart = torch.allclose(each, torch.cat(alone), equal_nan=True)
    if not apart or bool((gradient[1:] != 0).any()):
        raise UserError(
            "loss: mixes examples: the loss of one depends on the others in its batch, so clipping "
            "cannot bound what one example adds."
        )
