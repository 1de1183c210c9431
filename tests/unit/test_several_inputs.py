"""Inputs of several tensors train as one tensor of the same numbers would, or are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import clipnoise
from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Examples
from clipnoise.data.several import Several
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.run.private import PrivateTraining

LOSS = nn.CrossEntropyLoss(reduction="none")
ENGINES = [FactoredEngine, VmapEngine]
N, LENGTH = 24, 6
DRAWS = torch.Generator().manual_seed(0)
IDS = torch.randint(1, 20, (N, LENGTH), generator=DRAWS)
MASK = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (N, 1), generator=DRAWS)).long()
LEFT, RIGHT = torch.randn(N, 4, generator=DRAWS), torch.randn(N, 3, generator=DRAWS)
TARGETS = torch.randint(2, (N,), generator=DRAWS)
SETTINGS: dict[str, Any] = {
    "method": "dp-adam",
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "epsilon": 3,
    "delta": 1e-4,
    "steps": 4,
    "expected_batch_size": 8,
    "seed": 1,
}


class TwoTowers(nn.Module):
    """Two inputs, a layer for each, and the product of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 5), nn.Linear(3, 5), nn.Linear(5, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.dropout(self.left(left).tanh() * self.right(right).tanh()))
        return outputs


def bert() -> nn.Module:
    torch.manual_seed(0)
    signature = Signature("tokens", (LENGTH,), 2, vocabulary=20)
    inside: Any = tiny("tiny-bert").build(signature, Path("weights")).inside
    return inside  # type: ignore[no-any-return]


def two_towers() -> nn.Module:
    torch.manual_seed(0)
    return TwoTowers()


def additive(mask: Tensor) -> Tensor:
    return (1.0 - mask)[:, None, None, :] * -1e9


CASES = {
    "a tiny BERT and a dict": (
        bert, Several({"input_ids": IDS, "attention_mask": additive(MASK)})),
    "two towers and a tuple": (two_towers, Several((LEFT, RIGHT))),
}  # fmt: skip


def start(model: nn.Module, data: Any, **changes: Any) -> PrivateTraining:
    return clipnoise.private(model, LOSS, data, **{**SETTINGS, **changes})


def trained(model: nn.Module, data: Any, **changes: Any) -> Tensor:
    for _ in start(model, data, **changes):
        pass
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def one_backward_pass_each(network: nn.Module, inputs: Several, targets: Tensor) -> Tensor:
    parameters, rows = [*network.parameters()], []
    for i in range(len(targets)):
        one = inputs[i : i + 1]
        named = isinstance(one.parts, dict)
        outputs = network(**one.parts).logits if named else network(*one.parts)
        gradients = torch.autograd.grad(LOSS(outputs, targets[i : i + 1]).sum(), parameters)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


# Gradients.


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_per_example_gradients_are_those_of_one_backward_pass_each(
    case: str, kind: type[GradientEngine]
) -> None:
    build, inputs = CASES[case]
    network = build().eval()  # without dropout, whose masks autograd alone does not know
    engine = kind(network, LOSS)
    theta = engine.flat.theta.clone()
    expected = one_backward_pass_each(network, inputs, TARGETS)
    found = engine.per_example_gradients(inputs, TARGETS, theta)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    norms = expected.norm(dim=1, keepdim=True)
    clipping = Clipping(clip_norm=float(norms.median())).at(theta)
    clipped = (expected * (norms.median() / norms).clamp(max=1)).sum(dim=0)
    summed = engine.clipped_sum(inputs, TARGETS, clipping)
    torch.testing.assert_close(summed, clipped, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ENGINES)
def test_physical_batches_and_dropout_masks_belong_to_the_examples(
    kind: type[GradientEngine],
) -> None:
    engine = kind(two_towers().train(), LOSS)
    data = Examples(CASES["two towers and a tuple"][1], TARGETS)
    clipping = Clipping(clip_norm=0.3, key=7).at(engine.flat.theta.clone())
    whole, parts = (
        PrivateUnits(engine, data, PhysicalBatch(size)).clipped_sum(torch.arange(N), clipping)
        for size in (N, 5)
    )
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ENGINES)
def test_views_of_an_example_are_averaged_before_it_is_clipped(kind: type[GradientEngine]) -> None:
    engine = kind(two_towers().eval(), LOSS)  # without dropout, all views are the same
    data = Examples(CASES["two towers and a tuple"][1], TARGETS)
    clipping = Clipping(clip_norm=0.3).at(engine.flat.theta.clone())
    once, everyone = PrivateUnits(engine, data, PhysicalBatch(N)), torch.arange(N)
    three = replace(once, views=3).clipped_sum(everyone, clipping)
    torch.testing.assert_close(three, once.clipped_sum(everyone, clipping), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_empty_batch_gives_the_zero_vector(kind: type[GradientEngine]) -> None:
    engine = kind(two_towers(), LOSS)
    data = Examples(CASES["two towers and a tuple"][1], TARGETS)
    clipping = Clipping(clip_norm=1.0).at(engine.flat.theta.clone())
    nobody = torch.zeros(0, dtype=torch.int64)
    assert not PrivateUnits(engine, data, PhysicalBatch(4)).clipped_sum(nobody, clipping).any()
    assert not engine.clipped_sum(*data.take(slice(0, 0)), clipping).any()


# Whether examples touch each other.


class CentresTheSecond(TwoTowers):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left, right - right.mean(dim=0))


class LooksAtTheLongest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        longest = attention_mask.sum(dim=1).max()
        vectors = self.words(input_ids) * attention_mask.unsqueeze(2)
        outputs: Tensor = self.last(vectors.sum(dim=1) / longest)
        return outputs


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (CentresTheSecond(), Several((LEFT, RIGHT))),
        (LooksAtTheLongest(), Several({"input_ids": IDS, "attention_mask": MASK})),
    ],
)
def test_a_network_that_mixes_examples_in_any_of_its_inputs_is_refused(
    network: nn.Module, inputs: Several
) -> None:
    with pytest.raises(UserError, match="mixes examples"):
        check_model(network, inputs)


# In one's own loop.


class Items(Dataset[Any]):
    """The items of a pair of several inputs and of targets."""

    def __init__(self, inputs: Any, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> Any:
        if isinstance(self.inputs, Mapping):
            return {name: part[i].tolist() for name, part in self.inputs.items()}, self.targets[i]
        return tuple(part[i] for part in self.inputs), int(self.targets[i])


@pytest.mark.long
def test_what_a_tokenizer_returns_trains_a_model_of_transformers_as_it_comes() -> None:
    from transformers import BatchEncoding

    encoding = BatchEncoding({"input_ids": IDS, "attention_mask": MASK})
    training = start(bert(), (encoding, TARGETS))
    assert training.engine.startswith("factored")
    for _ in training:
        pass
    assert training.step == SETTINGS["steps"]


def test_a_mask_that_is_added_to_scores_changes_no_output_of_the_model() -> None:
    network, padded = bert().eval(), IDS.where(MASK == 1, 0)
    with torch.no_grad():
        given = network(input_ids=padded, attention_mask=MASK).logits
        other = network(input_ids=IDS, attention_mask=additive(MASK)).logits
    torch.testing.assert_close(given, other, rtol=1e-4, atol=1e-5)


class Pooling(nn.Module):
    """Takes the mean over real tokens, so that its mask must be 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 4), nn.Linear(4, 2)
        nn.init.zeros_(self.last.weight)  # with which every mask has the same outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.float().unsqueeze(-1)
        outputs: Tensor = self.last(
            (self.words(input_ids) * weights).sum(-2) / weights.sum(-2).clamp(min=1)
        )
        return outputs


class PoolingOne(nn.Module):
    """The same with both inputs in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Pooling()

    def forward(self, both: Tensor) -> Tensor:
        outputs: Tensor = self.inside(both[:, 0], both[:, 1])
        return outputs


def test_a_network_with_another_use_of_the_mask_gets_it_as_it_is() -> None:
    torch.manual_seed(0)
    named = trained(Pooling(), ({"input_ids": IDS, "attention_mask": MASK}, TARGETS))
    torch.manual_seed(0)
    joined = trained(PoolingOne(), (torch.stack([IDS, MASK], dim=1), TARGETS))
    torch.testing.assert_close(named, joined)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [(two_towers, (LEFT, RIGHT)), (bert, {"input_ids": IDS, "attention_mask": MASK})],
)
def test_a_torch_dataset_and_its_tensors_train_alike(build: Any, inputs: Any) -> None:
    tensors, items = ((inputs, TARGETS), Items(inputs, TARGETS))
    assert torch.equal(trained(build(), tensors), trained(build(), items))


def test_names_and_not_their_order_decide_which_argument_an_input_is() -> None:
    turned = {"right": RIGHT, "left": LEFT}
    by_place, by_name = trained(two_towers(), ((LEFT, RIGHT), TARGETS)), {}
    by_name = trained(two_towers(), (turned, TARGETS))
    assert torch.equal(by_place, by_name)


def test_public_examples_may_have_several_inputs() -> None:
    public = ((LEFT[:6], RIGHT[:6]), TARGETS[:6])
    moved = trained(
        two_towers(),
        ((LEFT, RIGHT), TARGETS),
        method="pda-dpmd",
        public=public,
    )
    assert moved.isfinite().all()


@pytest.mark.parametrize("inputs", [LEFT, {"left": LEFT, "right": RIGHT}])
def test_public_examples_with_other_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(UserError, match="public: the inputs must be as those of data"):
        start(
            two_towers(),
            ((LEFT, RIGHT), TARGETS),
            method="pda-dpmd",
            public=(inputs, TARGETS),
        )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (({"left": LEFT, "other": RIGHT}, TARGETS),
         "model: its forward does not take 2 inputs named left, other.*takes left, right"),
        (((LEFT, RIGHT, RIGHT), TARGETS), "model: its forward does not take 3 inputs in order"),
        (((LEFT, RIGHT[1:]), TARGETS), "data: expected as many rows of every input"),
        (({}, TARGETS), "data: inputs must be tensors, but there is none"),
        (({"left": LEFT, "right": ["a"] * N}, TARGETS), "data: inputs must be tensors, or numbers"),
        (TensorDataset(LEFT, RIGHT, TARGETS), r"data: .*\(\(first, second\), targets\)"),
        ([{"left": LEFT[0], "right": RIGHT[0], "labels": 1}], "got dict of left, right, labels"),
        (((LEFT, RIGHT * torch.nan), TARGETS), "data: inputs are nan or infinite in 24 of 24"),
        (Items((LEFT, [row[: 1 + i % 2] for i, row in enumerate(RIGHT)]), TARGETS),
         "data: inputs differ in their shapes"),
    ],
)  # fmt: skip
def test_inputs_that_make_no_batch_or_do_not_fit_the_network_are_named(
    data: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        start(two_towers(), data)


def test_tensors_of_different_lengths_have_no_length() -> None:
    with pytest.raises(ValueError, match="0 has 24, 1 has 5"):
        len(Several((LEFT, RIGHT[:5])))
