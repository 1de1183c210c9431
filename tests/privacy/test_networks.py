"""What a network does with its batch and with what it saw cannot break a guarantee."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import Dataset, TensorDataset

import clipnoise
from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples
from clipnoise.errors import UserError
from clipnoise.gradients import apart
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
from clipnoise.gradients.kept import Kept
from clipnoise.run.private import PrivateTraining

CLASSES, WIDTH = 3, 6
LOSS = nn.CrossEntropyLoss(reduction="none")
INPUTS = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(40) % CLASSES
WHOLE = {"sampler": "full", "expected_batch_size": 40}


def network(*layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), *layers, nn.Linear(4, CLASSES))


def private(
    model: nn.Module, data: Any = (INPUTS, TARGETS), loss: Any = LOSS, **settings: Any
) -> PrivateTraining:
    given = {"method": "dp-sgd", "learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 1.0}
    given |= {"delta": 1e-5, "steps": 3, "expected_batch_size": 10, "seed": 1}
    return clipnoise.private(model, loss, data, **{**given, **settings})


class Mixing(nn.Module):
    """A layer in which an example reaches others, by one of the ways that networks are written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.how)(x)

    def mean(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)

    def statistics_of_large_batches(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if len(x) >= 8 else x

    def running_count(self, x: Tensor) -> Tensor:
        return x / (1 + (x[:, :1] > 0).cumsum(dim=0))

    def hard_examples(self, x: Tensor) -> Tensor:
        return x * (x.norm(dim=1, keepdim=True) >= x.norm(dim=1).median())

    def capacity_of_experts(self, x: Tensor) -> Tensor:
        chosen = one_hot((x[:, 0] > 0).long(), 2)
        room = math.ceil(len(x) / 2)
        return x * ((chosen.cumsum(dim=0) <= room) * chosen).sum(dim=1, keepdim=True)

    def longest(self, x: Tensor) -> Tensor:
        return x / int((x > 0).sum(dim=1).max().clamp(min=1))

    def backward_pass(self, x: Tensor) -> Tensor:
        mixed: Tensor = MixedBackward.apply(x)
        return mixed


class MixedBackward(torch.autograd.Function):
    """The identity, whose gradient is that of all examples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].sum(dim=0).expand_as(gradients[0])


WAYS = [name for name, way in vars(Mixing).items() if callable(way) and name[0] != "_"]
WAYS.remove("forward")


def largest_change(engine: GradientEngine, inputs: Tensor, targets: Tensor, C: float) -> float:
    """Return how far the sum moves when an example leaves the batch, in units of C."""
    theta = engine.flat.theta.clone()

    def sum_of(indices: Tensor) -> Tensor:
        clipping = Clipping(C, examples=indices).at(theta)
        return engine.clipped_sum(inputs[indices], targets[indices], clipping).double()

    everyone = torch.arange(len(inputs))
    whole = sum_of(everyone)
    rest = [sum_of(everyone[everyone != i]) for i in range(0, len(inputs), 3)]
    return max(float((whole - part).norm()) for part in rest) / C


@pytest.mark.parametrize("how", WAYS)
def test_an_example_moves_the_sum_by_at_most_c_however_a_layer_mixes_its_batch(how: str) -> None:
    data = DenseExamples(INPUTS, TARGETS)
    engine = choose_engine(network(Mixing(how)).train(), LOSS, data).engine
    assert not engine.together
    for C in (0.05, 1.0):
        assert largest_change(engine, INPUTS, TARGETS, C) <= 1 + 1e-5


def test_a_batch_that_is_seen_whole_is_moved_further_which_the_test_above_would_notice() -> None:
    class Together(OneByOne):
        def per_example_gradients(self, inputs: Tensor, *rest: Any, **more: Any) -> Tensor:
            return torch.autograd.functional.jacobian(self._losses_at(inputs, *rest[:1]), rest[1])

        def _losses_at(self, inputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda theta: self.losses(
                self.flat.call(self.flat.views(theta), inputs), targets
            )

    engine = Together(network(Mixing("statistics_of_large_batches")), LOSS)
    assert largest_change(engine, INPUTS[:8], TARGETS[:8], 0.05) > 1.01


def mean_over_real_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    each = cross_entropy(outputs, targets, reduction="none", ignore_index=-100)
    return each / (targets != -100).sum()


def easiest_half(outputs: Tensor, targets: Tensor) -> Tensor:
    each = cross_entropy(outputs, targets, reduction="none")
    return each * (each <= each.median())


@pytest.mark.parametrize("loss", [mean_over_real_targets, easiest_half])
def test_an_example_moves_the_sum_by_at_most_c_however_a_loss_mixes_its_batch(loss: Any) -> None:
    targets = torch.where(torch.arange(40) % 4 > 0, -100, TARGETS) * (loss is not easiest_half)
    engine = choose_engine(network().train(), loss, DenseExamples(INPUTS, TARGETS)).engine
    assert engine.together
    assert largest_change(engine, INPUTS, targets, 0.05) <= 1 + 1e-5


@pytest.mark.parametrize("how", ["mean", "running_count", "hard_examples", "longest"])
def test_mixing_that_made_up_examples_show_is_refused_by_name(how: str) -> None:
    with pytest.raises(UserError, match="mixes examples"):
        private(network(Mixing(how)))


class Trimmed(nn.Module):
    """Averages word vectors over the positions that some text of the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 4), nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        longest = int((ids != 0).sum(dim=1).max())
        return self.last(self.words(ids[:, :longest]).mean(dim=1))


def test_texts_that_are_trimmed_to_the_longest_of_their_batch_are_refused() -> None:
    ids = torch.zeros(30, 12, dtype=torch.int64)
    ids[:, :3] = torch.arange(90).view(30, 3) % 19 + 1
    with pytest.raises(UserError, match="padding and sizes must not come from the batch"):
        private(Trimmed(), (ids, torch.arange(30) % CLASSES))


# Layers that run on the whole batch, because of what they are.

INSTANCES: dict[type[nn.Module], tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    nn.Linear: (lambda: nn.Linear(6, 4), (6,)),
    nn.Conv1d: (lambda: nn.Conv1d(2, 3, 2), (2, 6)),
    nn.Conv2d: (lambda: nn.Conv2d(2, 3, 2), (2, 6, 5)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, 4), (4, 5)),
    nn.LayerNorm: (lambda: nn.LayerNorm((3, 4)), (3, 4)),
    nn.RMSNorm: (lambda: nn.RMSNorm(4), (3, 4)),
    nn.Embedding: (lambda: nn.Embedding(9, 4, padding_idx=0), ()),
    nn.Flatten: (lambda: nn.Flatten(), (3, 4)),
    nn.Unflatten: (lambda: nn.Unflatten(1, (2, 3)), (6,)),
    nn.Softmax: (lambda: nn.Softmax(dim=1), (6,)),
    nn.LogSoftmax: (lambda: nn.LogSoftmax(dim=1), (6,)),
    nn.Sequential: (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU()), (6,)),
    nn.Dropout2d: (nn.Dropout2d, (4, 6, 2)),
    nn.Dropout3d: (nn.Dropout3d, (4, 6, 2, 2)),
    nn.Threshold: (lambda: nn.Threshold(0.1, 0.2), (6,)),
    **{kind: (lambda kind=kind: kind(2), (2, 6)) for kind in (nn.AvgPool1d, nn.MaxPool1d)},
    **{kind: (lambda kind=kind: kind(2), (2, 6, 6)) for kind in (nn.AvgPool2d, nn.MaxPool2d)},
    **{
        kind: (lambda kind=kind: kind(3), (2, 6))
        for kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
    },
    **{
        kind: (lambda kind=kind: kind(3), (2, 6, 6))
        for kind in (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    },
}


@pytest.mark.parametrize("kind", apart.LAYERS, ids=lambda kind: kind.__name__)
def test_a_known_layer_computes_each_row_from_the_same_row(kind: type[nn.Module]) -> None:
    make, shape = INSTANCES.get(kind, (kind, (4, 6)))
    layer = make().eval()
    assert apart.keeps_apart(layer)
    draws = torch.Generator().manual_seed(0)
    for count in (1, 2, 5):
        x = torch.randn(count, *shape, generator=draws)
        x = (x.abs() * 3).long() if kind is nn.Embedding else x.requires_grad_()
        rows = layer(x)
        torch.testing.assert_close(rows, torch.cat([layer(row.unsqueeze(0)) for row in x]))
        if x.is_floating_point() and rows.requires_grad:
            for i in range(count):
                (gradient,) = torch.autograd.grad(rows[i].sum(), x, retain_graph=True)
                assert not gradient[torch.arange(count) != i].any()


class Subclass(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


def hooked() -> nn.Module:
    layer = nn.Linear(WIDTH, 4)
    layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] - inputs[0].mean(dim=0),))
    return layer


def patched() -> nn.Module:
    layer = nn.Linear(WIDTH, 4)
    layer.forward = lambda x: x.mean(dim=0).expand_as(x)[:, :4]  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Subclass(WIDTH, 4),
        hooked(),
        patched(),
        nn.Flatten(0),
        nn.Unflatten(-2, (2, 3)),
        nn.Softmax(dim=0),
        nn.Softmax(dim=-1),
        nn.Embedding(9, 4, max_norm=1.0),
        nn.Embedding(9, 4, scale_grad_by_freq=True),
        nn.BatchNorm1d(4),
        nn.Sequential(nn.Tanh(), nn.LSTM(4, 4)),
    ],
    ids=str,
)
def test_what_only_resembles_a_known_layer_is_none(layer: nn.Module) -> None:
    assert not apart.keeps_apart(layer)


def test_a_loss_counts_as_known_only_if_it_leaves_the_examples_as_they_are() -> None:
    assert apart.adds_up(LOSS)
    assert not apart.adds_up(nn.CrossEntropyLoss())
    assert not apart.adds_up(nn.TripletMarginLoss(reduction="none"))
    assert not apart.adds_up(lambda outputs, targets: LOSS(outputs, targets))


# What a network keeps.


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("last",)


class Keeping(nn.Module):
    """A layer that keeps what it has seen, in one of the ways in which networks do."""

    shared: ClassVar[dict[str, float]] = {}
    largest: ClassVar[float] = 0.0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.seen = how, []
        self.slots, self.bytes = Slotted(), bytearray(8)
        self.slots.last = 0.0
        self.trained = nn.Parameter(torch.zeros(WIDTH))
        Keeping.shared.clear()
        Keeping.largest = 0.0
        self.frozen = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        only = self.how.endswith("only")  # where a value is larger than any that is made up
        if only and not bool((x.detach().abs() > 100).any()):
            return x
        last = x.detach()[0]
        with torch.no_grad():
            if self.how.startswith("buffer"):
                self.mean.mul_(0.9).add_(last)
            elif self.how.startswith("frozen"):
                self.frozen.data.mul_(0.9).add_(last)
            elif self.how.startswith("list"):
                self.seen.append(last)
            elif self.how.startswith("slot"):
                self.slots.last = float(last.sum())
            elif self.how.startswith("bytes"):
                self.bytes[:] = last.sum().numpy().tobytes() * 2
            elif self.how.startswith("a class's container"):
                self.shared["last"] = float(last.sum())
            elif self.how.startswith("a class's number"):
                Keeping.largest = max(Keeping.largest, float(last.sum()))
            elif self.how.startswith("of a trained parameter"):
                self.trained.last = last
            elif self.how.startswith("number of NumPy"):
                self.last = last.sum().numpy()[()]
            else:
                self.last = float(last.sum()) if self.how == "number" else last
        return x + 0 * self.trained


def keeping(how: str) -> nn.Module:
    return nn.Sequential(Keeping(how), nn.Linear(WIDTH, CLASSES))


HIDDEN = (
    *("number of NumPy", "slot", "bytes", "a class's container", "a class's number"),
    "of a trained parameter",
)


@pytest.mark.parametrize(
    "how", ["buffer", "frozen parameter", "list", "attribute", "number", *HIDDEN]
)
def test_a_network_that_keeps_what_it_saw_is_refused(how: str) -> None:
    with pytest.raises(UserError, match=r"0\.\S* changes with the examples"):
        private(keeping(how))


@pytest.mark.parametrize("how", ["buffer", "frozen parameter", "list", "attribute", *HIDDEN])
def test_what_is_kept_of_private_examples_only_ends_the_run(how: str) -> None:
    inputs = torch.cat([INPUTS[:-1], torch.full((1, WIDTH), 1000.0)])
    training = private(keeping(f"{how} only"), (inputs, TARGETS), **WHOLE)
    with pytest.raises(UserError, match=r"0\..* Nothing of this run may be published"):
        list(training)


def test_an_embedding_that_rewrites_its_rows_is_refused_also_where_it_is_frozen() -> None:
    words = nn.Embedding(9, 4, max_norm=1.0).requires_grad_(False)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(12, CLASSES))
    data = torch.zeros(20, 3, dtype=torch.int64), torch.zeros(20, dtype=torch.int64)
    with pytest.raises(UserError, match="model: 0 is a Embedding with max_norm"):
        private(model, data)


class Counting(nn.Module):
    """A layer that counts its passes, and makes a table when it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.table = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.table is None:
            self.table = torch.ones(4)
        return x * self.table


def test_counters_and_tables_that_no_example_decides_are_allowed() -> None:
    assert len(list(private(network(Counting())))) == 3


def test_a_table_that_was_made_for_inference_may_be_held() -> None:
    model = network()
    with torch.inference_mode():
        model.table = torch.ones(4)
    before = Kept(model)
    for exactly in (False, True):
        before.require_unchanged(exactly=exactly)
    with torch.inference_mode():
        model.table.add_(1)
    with pytest.raises(UserError, match="table changed while the network was trained"):
        before.require_unchanged(exactly=True)


# Modules with two names.


class UsedTwice(nn.Module):
    def __init__(self, layer: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.layer(x).tanh()).tanh())


def with_two_names(*, two: bool) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    if two:
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), last)
    return UsedTwice(layer, last)


def test_a_module_with_two_names_trains_as_one_that_is_called_twice() -> None:
    ends = []
    for two in (False, True):
        model = with_two_names(two=two)
        before = [p.detach().clone() for p in model.parameters()]
        training = private(model, learning_rate=1.0)
        assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        list(training)
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        assert len(ends[-1]) == len(training._trainer.state.theta)
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("kind", [VmapEngine, OneByOne])
def test_every_engine_leaves_a_module_with_two_names_as_it_was(
    kind: type[GradientEngine],
) -> None:
    engine = kind(with_two_names(two=True), LOSS)
    other = kind(with_two_names(two=False), LOSS)
    theta = engine.flat.theta.clone()
    sums = [e.clipped_sum(INPUTS, TARGETS, Clipping(0.1).at(theta)) for e in (engine, other)]
    torch.testing.assert_close(*sums)
    assert all(isinstance(p, nn.Parameter) for p in engine.network.parameters())
    assert len(list(engine.network.parameters())) == 4


# Datasets.


class Doubled(TensorDataset):
    """Tensors that are changed when they are fetched."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = super().__getitem__(index)
        return 2 * inputs, target


def test_a_dataset_of_tensors_with_items_of_its_own_gives_those() -> None:
    ends = []
    for data in (Doubled(INPUTS, TARGETS), (2 * INPUTS, TARGETS)):
        model = network()
        list(private(model, data))
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*ends)


class Ragged(Dataset[tuple[Tensor, int]]):
    def __init__(self, regular: int) -> None:
        self.regular = regular

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.ones(WIDTH + (index >= self.regular)), index % CLASSES


@pytest.mark.parametrize("regular", [1, 20])
def test_items_of_unequal_length_are_refused_with_advice(regular: int) -> None:
    with pytest.raises(UserError, match=r"data: inputs differ in their shapes \(\(6,\), \(7,\)\)"):
        list(private(network(), Ragged(regular), **WHOLE))


# Networks that people have.


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.last = nn.GRU(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gru(x.view(-1, 2, 3))[0][:, -1])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(
            x.view(-1, 2, 3),
            1 + (x[:, -1] > 0).long().cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        return self.last(self.lstm(rows)[1][0][-1])


class Masked(nn.Module):
    """A transformer with dropout in which padding is masked."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, CLASSES)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.axis = 0 if batch_first else 1

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.words(ids).transpose(0, self.axis)
        rows = self.encoder(rows, src_key_padding_mask=ids == 0).transpose(0, self.axis)
        return self.last(rows[:, 0])


class Dropped(nn.Module):
    """Stochastic depth: a whole branch is dropped for an example."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + 0.5 * x.tanh()
        kept = x.new_empty(len(x), 1).bernoulli_(0.5)
        return x + kept * x.tanh() + torch.rand(len(x), 1)


PEOPLE_HAVE: dict[str, Callable[[], nn.Module]] = {
    "GRU": Recurrent,
    "packed sequences": Packed,
    "stochastic depth": lambda: network(Dropped()),
    "padding masks": lambda: Masked(batch_first=True),
    "padding masks, examples second": lambda: Masked(batch_first=False),
}


@pytest.mark.parametrize("name", PEOPLE_HAVE)
def test_networks_that_people_have_are_trained_rightly(name: str) -> None:
    inputs = INPUTS
    if name.startswith("padding"):
        inputs = (INPUTS.abs() * 4).long().clamp(max=8)
        inputs[:, 0] = 1
        inputs[::3, 3:] = 0
    model = PEOPLE_HAVE[name]()
    reference = OneByOne(copy.deepcopy(model).train(), LOSS)
    training = private(model, (inputs, TARGETS))
    engine = training._trainer.engine
    theta = engine.flat.theta.clone()
    indices = torch.arange(20)
    clipping = Clipping(0.05, examples=indices, key=7).at(theta)
    whole, expected = (
        e.clipped_sum(inputs[indices], TARGETS[indices], clipping) for e in (engine, reference)
    )
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-6)
    assert len(list(training)) == 3


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.inside, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (network(Checkpointed()), r"runs again in the backward pass \(gradient checkpointing\)"),
        (nn.DataParallel(nn.Linear(WIDTH, CLASSES)), "hand over what it wraps"),
        (torch.jit.script(nn.Sequential(nn.Linear(WIDTH, CLASSES))), "Hand over the module"),
    ],
    ids=["checkpointing", "DataParallel", "script"],
)
def test_what_cannot_be_followed_is_refused_in_a_line(model: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        private(model)
    assert "\n" not in str(caught.value)
