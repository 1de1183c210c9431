"""Examples that are handed over as Python objects, and their checks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from clipnoise.data.base import DenseExamples, Examples
from clipnoise.data.several import Several, call, shape_of, tensors_of
from clipnoise.errors import UserError, explained
from clipnoise.gradients.checks import ending_of, made_up, perturb, unchanged
from clipnoise.seeds import words

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.several import Inputs

ARRAYS = (torch.Tensor, np.ndarray)
FIRST = 8  # items that are looked at before training, and as many more that are spread out
TOGETHER = 4096  # rows that are looked at at once
PAIRS = "a pair of tensors (inputs, targets), or a torch Dataset of such pairs with a length"
MASK = "attention_mask"  # of a tokenizer of transformers: 1 for a token, 0 for padding


class DatasetExamples(Examples):
    """The examples of a torch Dataset, fetched when a step draws them.

    What an item draws from the global streams of Python, NumPy and torch, such as a random crop, is
    a function of the step's key and the item's index alone, like a dropout mask.
    """

    def __init__(self, dataset: Any, device: str = "cpu") -> None:
        """Wrap a dataset of pairs (input, target); batches go to the device."""
        object.__setattr__(self, "dataset", dataset)
        object.__setattr__(self, "device", device)

    dataset: Any
    device: str

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        if isinstance(chosen, slice):
            chosen = torch.arange(len(self))[chosen]
        return self.seen(chosen, 0)

    def seen(self, chosen: Tensor, key: int) -> tuple[Inputs, Tensor]:
        with _global_streams():
            items = []
            for index in chosen.tolist():
                _seed_global_streams(int(words(key, np.array([index]), 1)[0, 0]))
                items.append(self.dataset[index])
        inputs, targets = _joined(items)
        return inputs.to(self.device), targets.to(self.device)

    def to(self, device: str) -> Examples:
        return DatasetExamples(self.dataset, device)


def _joined(items: list[Any]) -> tuple[Inputs, Tensor]:
    """Return items as a batch.

    Raises:
        UserError: they differ in their shapes, or in which inputs they have.
    """
    inputs, targets = zip(*items, strict=True)
    if not isinstance(inputs[0], Mapping | tuple | list):
        return _batch(inputs, "inputs"), _batch(targets, "targets")
    each = [_several(one, "data: the inputs of an item") for one in inputs]
    if any(one.names != each[0].names for one in each):
        raise UserError("data: the inputs of one item are others than those of another.")
    columns = zip(*(one.each for one in each), strict=True)
    batches = [_batch(column, "inputs") for column in columns]
    return each[0].with_each(batches), _batch(targets, "targets")


def _batch(values: Sequence[Any], what: str) -> Tensor:
    """Return one input of each item, or their targets, as a batch."""
    try:
        batch: Tensor = default_collate(list(values))
    except TypeError:
        raise UserError(
            f"data: {what} of type {type(values[0]).__name__} make no batch. Return tensors, "
            "arrays or numbers from the dataset."
        ) from None
    except RuntimeError:
        shapes = {torch.as_tensor(one).shape for one in values}
        if len(shapes) == 1:
            raise
        some = ", ".join(str(tuple(shape)) for shape in sorted(shapes)[:3])
        raise UserError(
            f"data: {what} differ in their shapes ({some}), so they make no batch. Pad them in the "
            "dataset, to a length that does not depend on the private examples."
        ) from None
    return batch


def _several(inputs: Any, what: str) -> Several:
    """Return a dict, a tuple or a list of tensors as several inputs.

    Raises:
        UserError: it holds none, or something else; what it is called is given.
    """
    named = isinstance(inputs, Mapping)  # a tokenizer returns one that is no dict
    with explained(f"{what} must be tensors, or numbers that make some"):
        parts = [torch.as_tensor(one) for one in (inputs.values() if named else inputs)]
    if not parts:
        raise UserError(f"{what} must be tensors, but there is none.")
    return Several(dict(zip(map(str, inputs), parts, strict=True)) if named else tuple(parts))


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
        data: a pair (inputs, targets) of tensors, of which the first may be several, or a torch
            Dataset.
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
    if isinstance(data, tuple | list) and (_is_of_tensors(data) or _begins_with_several(data)):
        examples = _of_tensors(data, name)
    elif isinstance(data, Mapping | IterableDataset) or hasattr(data, "iloc"):
        raise UserError(f"{name}: expected {PAIRS}, got {type(data).__name__}.")
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        examples = DatasetExamples(data)
    else:
        raise UserError(f"{name}: expected {PAIRS}, got {type(data).__name__}.")
    if len(examples) == 0:
        raise UserError(f"{name}: holds no examples.")
    if isinstance(examples, DatasetExamples):
        with _global_streams():
            _check_item(examples.dataset[0], name)
        first = examples.take(slice(FIRST))
    else:
        first = examples.take(slice(None))
    for part, values in zip(("inputs", "targets"), first, strict=True):
        for one in tensors_of(values):
            _check_finite(one, f"{name}: {part}")
    if isinstance(examples, DatasetExamples):
        _check_order(examples, name)
    return examples


def _check_order(examples: DatasetExamples, name: str) -> None:
    """Refuse a dataset whose items are others when they are fetched in another order.

    Otherwise whether one example is in a batch would change the others. Those that are tried are
    the first ones and as many more, spread over all.
    """
    first = range(len(examples))[:FIRST]
    chosen = torch.tensor(sorted({*first, *_spread(examples).tolist()}))
    items, turned = examples.take(chosen), examples.take(chosen.flip(0))
    if _bits(items) != _bits(turned, backwards=True):
        raise UserError(
            f"{name}: an item is another one when it is fetched again after others, so one example "
            "would change the others in its batch. Draw what is random in an item from the global "
            "streams of torch, NumPy or Python, which are set for each item here, and not from a "
            "generator of the dataset's own."
        )


def _spread(examples: Examples) -> Tensor:
    """Return the indices of a few examples, from the first one to the last."""
    return torch.linspace(0, len(examples) - 1, FIRST).long()


def _bits(batch: tuple[Inputs, Tensor], *, backwards: bool = False) -> str:
    """Return a digest of inputs and targets, also where they are not numbers."""
    tensors = (one for part in batch for one in tensors_of(part))
    return hashed(one.flip(0) if backwards else one for one in tensors)


def _is_of_tensors(data: Sequence[object]) -> bool:
    return all(isinstance(one, ARRAYS) for one in data)


def _begins_with_several(data: Sequence[object]) -> bool:
    """Return whether data are a pair of several inputs and of targets, not a list of items."""
    if len(data) != 2 or not isinstance(data[1], ARRAYS):
        return False
    first = data[0]
    return isinstance(first, Mapping) or (isinstance(first, tuple | list) and _is_of_tensors(first))


def _of_tensors(data: Sequence[Any], name: str) -> Examples:
    """Return examples that are tensors, or several and one of targets."""
    lengths = {len(one) for one in data if isinstance(one, ARRAYS)}
    if len(data) != 2 or len(lengths) != 1:
        shapes = ", ".join(str(tuple(one.shape)) for one in data)
        hint = " Several inputs are one dict or tuple: ((first, second), targets)."
        raise UserError(
            f"{name}: expected inputs and as many targets, got shapes {shapes}."
            + (hint if len(data) > 2 else "")
        )
    inputs, targets = data
    if isinstance(inputs, ARRAYS):
        return DenseExamples(torch.as_tensor(inputs), torch.as_tensor(targets))
    several = _several(inputs, f"{name}: inputs")
    if {one.shape[:1] for one in several.each} != {torch.as_tensor(targets).shape[:1]}:
        raise UserError(
            f"{name}: expected as many rows of every input as targets, got inputs of shapes "
            f"{shape_of(several)} and {len(targets)} targets."
        )
    return Examples(several, torch.as_tensor(targets))


def digest_of(examples: Examples) -> str:
    """Return 16 hex digits over examples; of those of a torch Dataset, over a few of them."""
    plain = not isinstance(getattr(examples, "inner", examples), DatasetExamples)
    chosen = slice(None) if plain else _spread(examples)
    return _bits(examples.take(chosen))


def hashed(tensors: Iterable[Tensor]) -> str:
    """Return 16 hex digits over the types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for values in tensors:
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
    joined = _joined([item]) if pair else ()
    if not joined or not all(
        isinstance(x, torch.Tensor) for one in joined for x in tensors_of(one)
    ):
        raise UserError(
            f"{name}: an item must be (input, target), two tensors or numbers; the input may be a "
            f"dict or a tuple of tensors; got {_named_keys(item)}."
        )


def _named_keys(item: object) -> str:
    kind = type(item).__name__
    return f"{kind} of {', '.join(map(str, item))}" if isinstance(item, Mapping) else kind


def names_of(examples: Examples) -> list[str] | None:
    """Return the names of several inputs in alphabetical order, or None for one input."""
    first, _ = examples.take(slice(1))
    return sorted(first.names) if isinstance(first, Several) else None


def users_of(users: Any, examples: int) -> Tensor:
    """Return the user of each example by number.

    Args:
        users: an id for each example: whole numbers or texts, in any sequence, array or tensor.
        examples: n.

    Returns:
        Numbers 0 … N−1 of N users, int64 of shape (n,).

    Raises:
        UserError: an id is missing or is something else, or there are more or fewer than examples.
    """
    ids = users.tolist() if hasattr(users, "tolist") else list(users)
    single = (np.generic, torch.Tensor, np.ndarray)
    ids = [one.item() if isinstance(one, single) and one.ndim == 0 else one for one in ids]
    if len(ids) != examples:
        raise UserError(f"users: {len(ids)} ids for {examples} examples; give one for each.")
    for row, one in enumerate(ids):
        if isinstance(one, list | tuple | set | np.ndarray | torch.Tensor):
            raise UserError(
                f"users: several ids in row {row}. An example belongs to one user: what belongs to "
                "several is protected for none of them."
            )
        if one is None or one == "" or one != one:
            raise UserError(f"users: a missing id in row {row}.")
        if not isinstance(one, str | int) or isinstance(one, bool):
            raise UserError(f"users: {one!r} in row {row}; an id must be a whole number or a text.")
    _, numbers = np.unique(np.array([str(one) for one in ids]), return_inverse=True)
    return torch.from_numpy(numbers.astype("int64"))


class WithAdditiveMask(Examples):
    """Examples whose mask of tokens is added to the scores of attention.

    Transformers takes such a mask, with four axes, as it is; what it computes from a mask of 0 and
    1 branches on the values, which vmap cannot follow.
    """

    def __init__(self, inner: Examples) -> None:
        """Wrap examples with several inputs."""
        object.__setattr__(self, "inner", inner)

    inner: Examples

    def __len__(self) -> int:
        return len(self.inner)

    def take(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        inputs, targets = self.inner.take(chosen)
        return _with_additive_mask(inputs), targets

    def seen(self, chosen: Tensor, key: int) -> tuple[Inputs, Tensor]:
        inputs, targets = self.inner.seen(chosen, key)
        return _with_additive_mask(inputs), targets

    def to(self, device: str) -> Examples:
        return WithAdditiveMask(self.inner.to(device))


def _with_additive_mask(inputs: Inputs) -> Inputs:
    assert isinstance(inputs, Several)
    assert isinstance(inputs.parts, dict)
    masked = (inputs.parts[MASK] == 0)[:, None, None, :]
    # Float32 holds it, and so does bfloat16.
    return Several({**inputs.parts, MASK: masked * torch.finfo(torch.bfloat16).min})


def takes_additive_mask(network: nn.Module, examples: Examples) -> bool:
    """Return whether a network computes the same with `attention_mask` as an additive mask.

    It is tried on made-up examples, at perturbed parameters.
    """
    first, _ = examples.take(slice(1))
    named = first.parts if isinstance(first, Several) and isinstance(first.parts, dict) else {}
    if MASK not in named or named[MASK].ndim != 2 or named[MASK].is_floating_point():
        return False
    device = next((p.device for p in network.parameters()), first.device)
    inputs = made_up(first, 3, ending=ending_of(network)).to(device)
    with unchanged(network), torch.no_grad():
        perturb(network)
        expected = call(network.eval(), inputs)
        try:
            found = call(network, _with_additive_mask(inputs))
        except Exception:  # whatever a network's own code raises
            return False
        return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
