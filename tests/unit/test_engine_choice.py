"""The engine is chosen by trying, the fastest first, and a wrong one is never chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradient_networks import CLASSES, NETWORKS, Outside, ReadsValues, build, examples, losses
from torch import Tensor, nn
from torch.nn.functional import linear

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Examples
from clipnoise.errors import UserError
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.uses import ParameterGradient, Squares


class Sorted(nn.Module):
    """A large weight that is sorted before its use: no rule knows that, vmap does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2**14)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.layer.weight.sort(dim=1).values)[:, :CLASSES]


@pytest.mark.parametrize("name", [*NETWORKS, "outside"])
def test_the_factored_engine_is_chosen_wherever_every_layer_has_a_rule(name: str) -> None:
    network = Outside() if name == "outside" else build(name)
    choice = choose_engine(network, losses, Examples(*examples(name, 4)))
    assert (choice.name, choice.engine.name) == ("factored", "factored")


def test_vmap_is_chosen_where_a_rule_is_missing_and_the_reason_is_given() -> None:
    choice = choose_engine(Sorted(), losses, Examples(*examples("convolution", 4)))
    assert choice.name == "vmap"
    assert "a trained parameter of 98,304 numbers in sort" in choice.reason


def test_a_network_that_reads_values_runs_one_example_at_a_time() -> None:
    network = ReadsValues(lambda: build("convolution"))
    choice = choose_engine(network, losses, Examples(*examples("convolution", 4)))
    assert choice.name == "one by one"
    assert "factored cannot: its code depends on the values of its inputs" in choice.reason


@pytest.mark.parametrize(
    "lack", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")]
)
def test_memory_that_runs_out_in_a_trial_chooses_no_slower_engine(lack: Exception) -> None:
    """The next engine may have enough of it, and then gives other bits than a repeated run."""

    class Lacks(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Lacks.calls += 1
            if Lacks.calls == 1:
                raise lack
            return super().forward(x)

    data = Examples(*examples("convolution", 4))
    network = nn.Sequential(nn.Flatten(), Lacks(data.take(slice(1))[0][0].numel(), CLASSES))
    with pytest.raises(type(lack)):
        choose_engine(network, losses, data)
    assert choose_engine(network, losses, data).name == "factored"


def test_a_network_that_no_engine_can_take_is_refused_with_the_reason_for_each() -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no such kernel")

    reasons = r"factored cannot: no such kernel; vmap cannot: .*; one by one cannot: no such kernel"
    with pytest.raises(UserError, match=reasons):
        choose_engine(Fails(6, 3), losses, Examples(*examples("convolution", 4)))


def test_an_engine_that_takes_wrong_gradients_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = VmapEngine.per_example_gradients
    monkeypatch.setattr(
        VmapEngine, "per_example_gradients", lambda *arguments: 0.5 * right(*arguments)
    )
    choice = choose_engine(Sorted(), losses, Examples(*examples("convolution", 4)))
    assert choice.name == "one by one"
    assert "vmap cannot: its per-example gradients are not those" in choice.reason


def test_an_engine_that_clips_wrongly_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ParameterGradient.squared_norms

    def half(gradient: ParameterGradient, scale: Tensor | None) -> Squares:
        return Squares(0.5 * right(gradient, scale).values)

    monkeypatch.setattr(ParameterGradient, "squared_norms", half)
    choice = choose_engine(build("convolution"), losses, Examples(*examples("convolution", 4)))
    assert choice.name == "vmap"
    assert "factored cannot: its clipped sum is not that" in choice.reason


def test_the_choice_leaves_parameters_modes_and_random_streams_alone() -> None:
    network = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    network[1].eval()
    before = [p.clone() for p in network.parameters()]
    state = torch.random.get_rng_state()
    choose_engine(network, losses, Examples(*examples("convolution", 4)))
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert [module.training for module in network.modules()] == [True, True, False]
    assert torch.equal(torch.random.get_rng_state(), state)


class Remembering(nn.Module):
    """Layers that drop values without a layer of dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 4, 2, batch_first=True, dropout=0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(x.view(-1, 2, 3))
        return self.last(self.attention(states, states, states)[0].mean(dim=1))


def test_dropout_inside_other_layers_does_not_rule_an_engine_out_and_is_restored() -> None:
    network = Remembering()
    assert (
        choose_engine(network, losses, Examples(*examples("own parameter", 4))).name == "factored"
    )
    assert network.memory.dropout == network.attention.dropout == 0.5


@pytest.mark.parametrize(("second", "engine"), [(nn.Identity, "factored"), (Sorted, "vmap")])
def test_dropout_does_not_rule_an_engine_out(second: Callable[[], nn.Module], engine: str) -> None:
    network = nn.Sequential(nn.Dropout(0.5), second(), nn.LazyLinear(3))
    network(torch.zeros(1, 6))
    choice = choose_engine(network, losses, Examples(*examples("convolution", 4)))
    assert choice.name == engine


@pytest.mark.parametrize(
    ("make", "data", "engine"),
    [
        (Sorted, "convolution", "vmap"),
        (lambda: build("convolution"), "convolution", "factored"),
        (Remembering, "own parameter", "factored"),
    ],
)
def test_every_engine_takes_passes_in_bfloat16_and_clips_in_float32(
    make: Callable[[], nn.Module], data: str, engine: str
) -> None:
    inputs, targets = examples(data, 4)
    choice = choose_engine(make(), losses, Examples(inputs, targets), "bfloat16")
    assert choice.name == engine
    theta = choice.engine.flat.theta.clone()
    low = choice.engine.clipped_sum(inputs, targets, Clipping(1e6).at(theta))
    alone = choice.engine.clipped_sum(inputs[:1], targets[:1], Clipping(1e-4).at(theta))
    choice.engine.precision = "float32"
    full = choice.engine.clipped_sum(inputs, targets, Clipping(1e6).at(theta))
    assert 0 < float((low - full).norm()) < 0.05 * float(full.norm())
    assert low.dtype == torch.float32
    assert float(alone.norm()) == pytest.approx(1e-4, rel=1e-6)


def test_a_network_that_cannot_run_at_the_precision_is_refused_before_training() -> None:
    class Network(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("no kernel for bfloat16")
            return super().forward(x)

    data = Examples(*examples("convolution", 4))
    assert choose_engine(Network(6, CLASSES), losses, data).name == "factored"
    with pytest.raises(UserError, match="factored cannot: no kernel for bfloat16"):
        choose_engine(Network(6, CLASSES), losses, data, "bfloat16")
