"""The contract of a model, checked for every registered one on all examples that it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny_models import MODELS, tiny
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Dataset, DenseExamples, Examples
from clipnoise.data.several import Several, call
from clipnoise.data.signature import Input, Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.gradients.checks import check_model, made_up
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.plugins import plugins

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

WEIGHTS = Path("weights")
DATASETS = plugins("clipnoise.data", Dataset)
SHAPES = {
    "features": Signature("features", (20,), 4),
    "features with tags": Signature("features", (20,), 6, "multi-label"),
    "features with numbers": Signature("features", (20,), 2, "regression"),
    "8×8 grey": Signature("image", (1, 8, 8), 10),
    "28×28 grey": Signature("image", (1, 28, 28), 10),
    "32×32 colour": Signature("image", (3, 32, 32), 100),
    "28×28 grey, to give back": Signature("image", (1, 28, 28), 784, "reconstruction"),
    "nodes": Signature("nodes", (4, 6), 5),
    "tokens": Signature("tokens", (12,), 3, vocabulary=50),
    "table": Signature(
        "several", (), 3, parts=(Input("numbers", (4,)), Input("categories", (2,), 7))
    ),
    "masked tokens": Signature("tokens", (12,), 50, "masked-tokens", vocabulary=50),
}
PAIRS = [
    (model, shape)
    for model in MODELS
    for shape, signature in SHAPES.items()
    if MODELS[model].takes(signature)
]


def each_once(pairs: list[tuple[str, str]]) -> list[ParameterSet]:
    """Return the same pairs; those in which neither the model nor the shape is new are long."""
    models: set[str] = set()
    shapes: set[str] = set()
    cases = []
    for model, shape in pairs:
        new = model not in models or shape not in shapes
        cases.append(pytest.param(model, shape, marks=[] if new else [pytest.mark.long]))
        models.add(model)
        shapes.add(shape)
    return cases


every_pair = pytest.mark.parametrize(("model", "shape"), each_once(PAIRS))
every_model = pytest.mark.parametrize("model", MODELS)
CLIPPINGS = {
    "plain": Clipping(0.1),
    "scaled": Clipping(0.1, scale=torch.tensor(0.7)),
    "two iterates": Clipping(0.1, weights=(0.9, 0.1)),
    "micro-batches": Clipping(0.1, group_size=2, groups=torch.tensor([0, 1, 1])),
}


def build(model: str, shape: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return tiny(model).build(SHAPES[shape], WEIGHTS)


def examples(shape: str, count: int) -> Any:
    signature = SHAPES[shape]
    draws = torch.Generator().manual_seed(0)
    if signature.parts:
        numbers, ids = torch.randn(count, 4, generator=draws), torch.arange(2 * count) % 7
        parts = Several({"numbers": numbers, "categories": ids.view(count, 2)})
        return Examples(parts, torch.randint(signature.outputs, (count,), generator=draws))
    if signature.vocabulary is None:
        inputs = made_up(torch.zeros(1, *signature.shape), count)
    else:
        words = torch.randint(1, signature.vocabulary, (count, *signature.shape), generator=draws)
        lengths = torch.tensor([12, 7, 9, 1, 12])[:count]
        inputs = words * (torch.arange(12) < lengths.unsqueeze(1))
    if signature.task_name == "classification":
        return DenseExamples(inputs, torch.randint(signature.outputs, (count,), generator=draws))
    if signature.task_name == "masked-tokens":
        return DenseExamples(inputs, torch.where(inputs % 3 == 1, inputs, -100))
    return DenseExamples(inputs, torch.rand(count, signature.outputs, generator=draws).round())


@every_model
def test_a_model_takes_some_shape_that_is_tried_here(model: str) -> None:
    assert model in {name for name, _ in PAIRS}


@pytest.mark.parametrize("name", DATASETS)
def test_some_model_takes_every_dataset(name: str) -> None:
    assert any(model.takes(DATASETS[name]().signature) for model in MODELS.values())


@every_pair
def test_outputs_are_as_declared_and_each_example_has_its_own_loss(model: str, shape: str) -> None:
    data, signature = examples(shape, 5), SHAPES[shape]
    outputs, task = call(build(model, shape).eval(), data.inputs), signature.task
    length = signature.shape if signature.task_name == "masked-tokens" else ()
    wide = getattr(MODELS[model], "outputs", signature.outputs)  # a net with more than classes
    assert outputs.shape == (5, *length, wide)
    losses = task.losses(outputs, data.targets)
    assert losses.shape == (5,)
    for i in range(5):
        alone = task.losses(outputs[i : i + 1], data.targets[i : i + 1])
        torch.testing.assert_close(losses[i : i + 1], alone)
    if signature.task_name == "classification":
        assert torch.equal(task.scores(outputs, outputs.argmax(dim=1)), torch.ones(5))


@every_pair
def test_examples_do_not_mix(model: str, shape: str) -> None:
    check_model(build(model, shape), examples(shape, 1).inputs)


@pytest.mark.parametrize("model", [name for name, shape in PAIRS if shape == "tokens"])
def test_the_padding_of_a_text_changes_nothing(model: str) -> None:
    network, inputs = build(model, "tokens").eval(), examples("tokens", 5).inputs
    longer = torch.cat([inputs, torch.zeros(5, 20, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(network(longer), network(inputs))
    torch.testing.assert_close(network(inputs[3:4, :1]), network(inputs[3:4]))


@every_pair
def test_building_draws_from_torchs_generator_and_nothing_else(model: str, shape: str) -> None:
    one, same = build(model, shape), build(model, shape)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


@every_pair
def test_the_factored_engine_is_chosen_and_its_sum_is_that_of_autograd(
    model: str, shape: str
) -> None:
    data = examples(shape, 4)
    choice = choose_engine(build(model, shape), SHAPES[shape].task.losses, data)
    assert choice.name == "factored"
    theta = choice.engine.flat.theta.clone()
    clipped = choice.engine.clipped_sum(data.inputs, data.targets, Clipping(1e6).at(theta))
    expected = 4 * choice.engine.mean_gradient(data.inputs, data.targets, theta)
    torch.testing.assert_close(clipped, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", [name for name in MODELS if "dropout" in to_plain(tiny(name))])
def test_dropout_does_not_rule_the_factored_engine_out(model: str) -> None:
    dropping = replace(tiny(model), dropout=0.5)  # type: ignore[call-arg]
    network = dropping.build(SHAPES["tokens"], WEIGHTS)
    losses, data = SHAPES["tokens"].task.losses, examples("tokens", 4)
    assert choose_engine(network.train(), losses, data).name == "factored"
    assert not torch.equal(network(data.inputs), network(data.inputs))


@every_pair
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_engines_agree_on_the_clipped_sum_of_every_query(model: str, shape: str) -> None:
    data, losses = examples(shape, 3), SHAPES[shape].task.losses

    def run(kind: type[GradientEngine]) -> dict[str, Tensor]:
        engine = kind(build(model, shape), losses)
        thetas = [engine.flat.theta.clone(), 1.1 * engine.flat.theta]
        sums = {}
        for name, clipping in CLIPPINGS.items():
            if clipping.scale is not None:
                clipping = replace(clipping, scale=clipping.scale.expand_as(thetas[0]))
            iterates = thetas[: len(clipping.weights)]
            sums[name] = engine.clipped_sum(data.inputs, data.targets, clipping.at(*iterates))
        return sums

    expected = run(VmapEngine)
    torch.testing.assert_close(run(FactoredEngine), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "shape"),
    each_once([pair for pair in PAIRS if SHAPES[pair[1]].task_name == "classification"]),
)
def test_the_work_of_a_model_has_the_right_order_of_magnitude(model: str, shape: str) -> None:
    signature, kind = SHAPES[shape], MODELS[model]
    options = {"pretrained": False} if kind.pretrained_weights else {}
    numbers = torch.float32 if signature.vocabulary is None else torch.int64
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = kind(**options).build(signature, WEIGHTS)
        if signature.parts:
            network(numbers=torch.zeros(1, 4), categories=torch.zeros(1, 2, dtype=torch.int64))
        else:
            network(torch.zeros(1, *signature.shape, dtype=numbers))
    counted = counter.get_total_flops() / signature.size
    assert 1 / 30 < counted / kind.work < 30


@pytest.mark.parametrize("shape", [(2,), (3, 5, 5), (1, 300, 300)], ids=str)
@every_model
def test_a_shape_that_does_not_fit_is_refused_with_the_models_that_do(
    model: str, shape: tuple[int, ...]
) -> None:
    kind = MODELS[model]
    signature = Signature("features" if len(shape) == 1 else "image", shape, 2)
    if kind.takes(signature):
        assert kind().build(signature, WEIGHTS)(torch.zeros(2, *shape)).shape == (2, 2)
        return
    with pytest.raises(UserError) as caught:
        kind().build(signature, WEIGHTS)
    message = str(caught.value)
    assert model in message
    assert str(shape) in message
    assert kind.accepts in message
    assert "logistic" in message.partition("Models that take them:")[2]


@every_model
def test_a_mistyped_option_is_named(model: str) -> None:
    with pytest.raises(UserError, match="widht: unknown key"):
        parse(MODELS[model], {"widht": 1})


@pytest.mark.parametrize("model", [name for name in MODELS if "heads" in to_plain(tiny(name))])
def test_width_and_heads_that_do_not_fit_are_refused(model: str) -> None:
    with pytest.raises(UserError, match="width must be a multiple of heads, 5"):
        parse(MODELS[model], {"width": 16, "heads": 5})


@pytest.mark.quick(model=["logistic", "cnn-5", "vit", "lstm", "tiny-bert"])
@every_pair
def test_passes_in_bfloat16_lose_digits_but_clip_exactly(model: str, shape: str) -> None:
    data, losses = examples(shape, 3), SHAPES[shape].task.losses
    choice = choose_engine(build(model, shape), losses, data, "bfloat16")
    engine = choice.engine
    assert choice.name == "factored"
    theta = engine.flat.theta.clone()
    low = engine.clipped_sum(data.inputs, data.targets, Clipping(1e6).at(theta))
    engine.precision = "float32"
    full = engine.clipped_sum(data.inputs, data.targets, Clipping(1e6).at(theta))
    engine.precision = "bfloat16"
    assert low.dtype == torch.float32
    assert 0 < float((low - full).norm()) < 0.2 * float(full.norm())
    for i in range(3):
        alone = engine.clipped_sum(
            data.inputs[i : i + 1], data.targets[i : i + 1], Clipping(1e-4).at(theta)
        )
        assert float(alone.double().norm()) <= 1e-4 * (1 + 1e-6)
