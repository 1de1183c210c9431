"""What is handed over as Python objects: a network, a loss and examples, and their checks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from clipnoise.data.base import DenseExamples, Examples
from clipnoise.data.signature import Kind, Signature
from clipnoise.errors import UserError, explained
from clipnoise.gradients.checks import check_kinds, ending_of, made_up, unchanged
from clipnoise.methods.base import WithSideInformation
from clipnoise.privacy.units import Example, Unit
from clipnoise.run.procedure import Procedure
from clipnoise.seeds import words

if TYPE_CHECKING:
    from torch import Tensor, nn

    Losses = Callable[[Tensor, Tensor], Tensor]

EXACT = {torch.float32, torch.float64}
ARRAYS = (torch.Tensor, np.ndarray)
FIRST = 8  # items that are looked at before training
TOGETHER = 4096  # rows that are looked at at once
PAIRS = "a pair of tensors (inputs, targets), or a torch Dataset of such pairs with a length"


class DatasetExamples(Examples):
    """The examples of a torch Dataset, fetched when a step draws them.

    What an item draws from the global streams of Python, NumPy and torch, such as a random crop, is
    a function of the step's key and the item's index alone, like a dropout mask.
    """

    def __init__(self, dataset: Any, device: str = "cpu") -> None:
        """Wrap a dataset of pairs (input, target), tensors or numbers; batches go to the device."""
        object.__setattr__(self, "dataset", dataset)
        object.__setattr__(self, "device", device)

    dataset: Any
    device: str

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        if isinstance(chosen, slice):
            chosen = torch.arange(len(self))[chosen]
        return self.seen(chosen, 0)

    def seen(self, chosen: Tensor, key: int) -> tuple[Tensor, Tensor]:
        with _global_streams():
            items = []
            for index in chosen.tolist():
                _seed_global_streams(int(words(key, np.array([index]), 1)[0, 0]))
                items.append(self.dataset[index])
        inputs, targets = _joined(items)
        return inputs.to(self.device), targets.to(self.device)

    def to(self, device: str) -> Examples:
        return DatasetExamples(self.dataset, device)


def _joined(items: list[Any]) -> tuple[Tensor, Tensor]:
    """Return items as a batch.

    Raises:
        UserError: they differ in their shapes.
    """
    try:
        inputs, targets = default_collate(items)
    except RuntimeError:
        shapes = {torch.as_tensor(item[0]).shape for item in items}
        if len(shapes) == 1:
            raise
        some = ", ".join(str(tuple(shape)) for shape in sorted(shapes)[:3])
        raise UserError(
            f"data: inputs differ in their shapes ({some}), so they make no batch. Pad them in the "
            "dataset, to a length that does not depend on the private examples."
        ) from None
    return inputs, targets


@contextmanager
def _global_streams() -> Iterator[None]:
    """Leave the global random streams as they were before the `with` block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _seed_global_streams(word: int) -> None:
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.default_generator.manual_seed(word)


def examples_of(data: object, name: str) -> Examples:
    """Return examples that were handed over.

    Args:
        data: a pair of tensors, or a torch Dataset.
        name: of the argument, for error messages.

    Raises:
        UserError: it is something else, or is empty.
    """
    if isinstance(data, DataLoader):
        raise UserError(
            f"{name}: give the DataLoader's dataset instead. Batches are drawn here, as the "
            "accountant assumes; a DataLoader draws others."
        )
    if type(data) is TensorDataset:  # a subclass may do anything with the tensors
        data = data.tensors
    if isinstance(data, tuple | list) and all(isinstance(one, ARRAYS) for one in data):
        if len({len(one) for one in data}) != 1 or len(data) != 2:
            shapes = ", ".join(str(tuple(one.shape)) for one in data)
            raise UserError(f"{name}: expected inputs and as many targets, got shapes {shapes}.")
        examples: Examples = DenseExamples(*map(torch.as_tensor, data))
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        examples = DatasetExamples(data)
    else:
        raise UserError(f"{name}: expected {PAIRS}, got {type(data).__name__}.")
    if len(examples) == 0:
        raise UserError(f"{name}: holds no examples.")
    if isinstance(examples, DatasetExamples):
        with _global_streams():
            _check_item(examples.dataset[0], name)
            first = _joined([examples.dataset[place] for place in range(min(FIRST, len(examples)))])
    else:
        first = examples.take(slice(None))
    for part, values in zip(("inputs", "targets"), first, strict=True):
        _check_finite(values, f"{name}: {part}")
    return examples


def digest_of(examples: Examples) -> str:
    """Return 16 hex digits over examples; of those of a torch Dataset, over a few of them."""
    plain = not isinstance(examples, DatasetExamples)
    chosen = slice(None) if plain else torch.linspace(0, len(examples) - 1, FIRST).long()
    digest = hashlib.sha256()
    for values in examples.take(chosen):
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _check_finite(values: Tensor, what: str) -> None:
    """Refuse rows that are not numbers: the gradients of such examples would be taken to be 0."""
    starts = range(0, len(values), TOGETHER)
    parts = (values[start : start + TOGETHER].unsqueeze(-1).flatten(1) for start in starts)
    wrong = ~torch.cat([part.isfinite().all(1) for part in parts])
    if bool(wrong.any()):
        raise UserError(
            f"{what} are nan or infinite in {int(wrong.sum())} of {len(values)} rows, first in row "
            f"{int(wrong.nonzero()[0])}. Give numbers, chosen without a look at private rows, or "
            "leave these examples out."
        )


def _check_item(item: object, name: str) -> None:
    """Refuse a dataset whose items are not pairs of an input and a target."""
    pair = isinstance(item, tuple | list) and len(item) == 2
    if not pair or not all(isinstance(one, torch.Tensor) for one in default_collate([item])):
        raise UserError(
            f"{name}: an item must be (input, target), two tensors or numbers; "
            f"got {type(item).__name__}."
        )


@dataclass(frozen=True, kw_only=True)
class OwnProcedure(Procedure):
    """A procedure on examples that are handed over.

    Attributes:
        examples: n.
    """

    examples: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, WithSideInformation):
            self.method.side_information.check(None)

    @cached_property
    def unit(self) -> Unit:
        if self.method.query.adjacency == "add-remove-user":
            raise UserError(
                f"method: {self.method.id} protects users, but these examples have no user ids."
            )
        return Example(count=self.examples)


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
    device = next((p.device for p in network.parameters()), first.device)
    inputs = made_up(first, 3, ending=ending_of(network)).to(device)
    targets = target.new_zeros(3, *target.shape[1:]).to(device)
    targets[1:] = 1  # so that a weight that follows from the classes of a batch is noticed
    failing = f"model: fails on inputs of shape {tuple(inputs.shape)}"
    with explained(failing), unchanged(network), torch.no_grad():
        outputs = network.eval()(inputs)
    if not isinstance(outputs, torch.Tensor):
        raise UserError(f"model: must return one tensor, got {type(outputs).__name__}.")
    low = {p.dtype for p in network.parameters() if p.requires_grad} - EXACT
    if low:
        raise UserError(
            f"model: {', '.join(map(str, low))} parameters would make clipping and noise inexact. "
            "Give float32 parameters; precision='bfloat16' speeds the passes up."
        )
    _check_losses(losses, outputs.requires_grad_(), targets)
    numbers: Kind = "features" if inputs.ndim == 2 else "image"
    return Signature(
        kind=numbers if inputs.is_floating_point() else "tokens",
        shape=tuple(inputs.shape[1:]),
        outputs=outputs[0].numel(),
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
