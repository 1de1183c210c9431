"""Networks in which examples influence each other are refused, with the module's name."""

from __future__ import annotations

import math

import pytest
import torch
from gradient_networks import NETWORKS, build, examples
from torch import Tensor, nn

from clipnoise.data.several import Several
from clipnoise.errors import UserError
from clipnoise.gradients.checks import check_model, made_up, made_up_tensor


class Mixes(nn.Module):
    """A module that does something to its batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "mean over the batch":
            return x - x.mean(dim=0)
        if self.how == "detached statistics":
            return x / x.detach().std(dim=0, correction=0).add(1.0)
        if self.how == "batch size":
            return x / len(x)
        if self.how == "order":
            return x.roll(1, dims=0)
        if self.how == "a hint only":
            return x + 1e-9 * x.sum(dim=0)
        return x.flip(0) * 0 + x if self.how == "nothing" else x.sort(dim=0).values


class Remembers(nn.Module):
    """A module that keeps a running statistic and does not use it."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.running.add_(x.detach().mean())
        return x


def around(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Tanh(), module), nn.Linear(4, 3))


BATCH = torch.zeros(2, 6)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_keep_examples_apart_pass(name: str) -> None:
    check_model(build(name), examples(name, 2)[0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.LazyBatchNorm1d(),
        nn.SyncBatchNorm(4),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.BatchNorm1d(4).eval().requires_grad_(False),
        nn.InstanceNorm1d(4, track_running_stats=True),
    ],
    ids=lambda layer: str(layer)[:40],
)
def test_batch_statistics_are_refused_by_path_and_type(layer: nn.Module) -> None:
    with pytest.raises(UserError, match=r"1\.1 is a \w+Norm") as caught:
        check_model(around(layer), BATCH)
    assert "GroupNorm or LayerNorm" in str(caught.value)


@pytest.mark.parametrize("how", ["mean over the batch", "detached statistics", "order", "sorting"])
def test_a_module_that_mixes_examples_is_refused_by_path(how: str) -> None:
    with pytest.raises(UserError, match=r"model: 1\.1 mixes examples"):
        check_model(around(Mixes(how)), BATCH)


@pytest.mark.parametrize("how", ["batch size", "a hint only"])
def test_the_faintest_mixing_is_refused(how: str) -> None:
    with pytest.raises(UserError, match="the network mixes examples"):
        check_model(around(Mixes(how)), BATCH)


def test_mixing_behind_a_layer_that_starts_at_zero_is_seen() -> None:
    network = around(Mixes("mean over the batch"))
    nn.init.zeros_(network[2].weight)  # type: ignore[index, arg-type]
    with pytest.raises(UserError, match="mixes examples"):
        check_model(network, BATCH)


def test_mixing_of_token_embeddings_is_seen() -> None:
    network = nn.Sequential(nn.Embedding(5, 4), Mixes("mean over the batch"))
    with pytest.raises(UserError, match="model: 1 mixes examples"):
        check_model(network, torch.zeros(1, 3, dtype=torch.int64))


class Decides(nn.Module):
    """Takes one of two ways by the size of the batch's values, which lies between the probes'."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.one if float(x.detach().norm()) < 3.8 else self.other
        outputs: Tensor = chosen(x)
        return outputs


def test_control_flow_that_depends_on_the_batch_is_refused() -> None:
    with pytest.raises(UserError, match="mixes examples"):
        check_model(Decides(), torch.zeros(2, 4))


def test_a_buffer_that_remembers_examples_is_refused() -> None:
    with pytest.raises(UserError, match=r"1\.1\.running changes with the examples"):
        check_model(around(Remembers()), BATCH)


def test_what_only_looks_like_mixing_passes() -> None:
    check_model(around(Mixes("nothing")), BATCH)
    check_model(around(nn.Dropout(0.5)), BATCH)
    check_model(around(nn.GroupNorm(2, 4)), BATCH)


def test_outputs_that_are_no_numbers_are_not_taken_for_mixing() -> None:
    class Undefined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, math.nan, x)

    check_model(nn.Sequential(nn.Linear(6, 3), Undefined()), BATCH)


def test_the_check_leaves_network_and_random_streams_as_they_were() -> None:
    network = around(Remembers())
    network[2].eval()  # type: ignore[index]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    with pytest.raises(UserError):
        check_model(network, BATCH)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert not network[2].training  # type: ignore[index]
    assert not any(module._forward_hooks for module in network.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_made_up_texts_are_of_several_lengths_and_end_as_the_network_wants() -> None:
    texts = made_up(torch.zeros(1, 8, dtype=torch.int64), 4, ending=7)
    assert isinstance(texts, Tensor)
    for text, length in zip(texts, (8, 6, 4, 2), strict=True):
        assert text[0] == 1
        assert text[: length - 1].max() <= 1
        assert text[length - 1 :].tolist() == [7] + [0] * (8 - length)


def test_of_several_made_up_inputs_the_text_alone_has_an_ending() -> None:
    shape = torch.zeros(1, 8, dtype=torch.int64)
    given = Several({"mask": shape, "input_ids": shape, "number": torch.zeros(1, 3)})
    made = made_up(given, 4, ending=7)
    assert isinstance(made, Several)
    assert made.names == given.names
    mask, ids, numbers = made.each
    assert (mask == 7).sum() == 0
    assert (ids == 7).sum() == 4
    assert numbers.shape == (4, 3)
    assert torch.equal(ids, made_up_tensor(shape, 4, 7, place=1))
