"""What every model must keep, whichever it is, on every dataset whose shape it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from clipnoise.data.base import Dataset, DenseExamples
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.hooks import HooksEngine
from clipnoise.gradients.probes import made_up
from clipnoise.gradients.vmap import VmapEngine
from clipnoise.models.base import Model
from clipnoise.plugins import plugins
from clipnoise.privacy.queries import Clipping

WEIGHTS = Path("weights")
MODELS = plugins("clipnoise.models", Model)
SHAPES = {
    **{name: kind().signature for name, kind in plugins("clipnoise.data", Dataset).items()},
    "28×28 grey": Signature("image", (1, 28, 28), 10),
    "32×32 colour": Signature("image", (3, 32, 32), 100),
}
PAIRS = [
    (model, shape)
    for model in MODELS
    for shape, signature in SHAPES.items()
    if MODELS[model].takes(signature)
]
every_pair = pytest.mark.parametrize(("model", "shape"), PAIRS)
every_model = pytest.mark.parametrize("model", MODELS)


def build(model: str, shape: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[model]().build(SHAPES[shape], WEIGHTS)


def examples(shape: str, count: int) -> DenseExamples:
    signature = SHAPES[shape]
    draws = torch.Generator().manual_seed(0)
    targets = torch.randint(signature.outputs, (count,), generator=draws)
    return DenseExamples(made_up(torch.zeros(1, *signature.shape), count), targets)


@every_model
def test_a_model_takes_some_shape_that_is_tried_here(model: str) -> None:
    assert model in {name for name, _ in PAIRS}


@every_pair
def test_there_is_one_output_per_class_and_one_loss_per_example(model: str, shape: str) -> None:
    data, goal = examples(shape, 5), SHAPES[shape].goal
    outputs = build(model, shape)(data.inputs)
    assert outputs.shape == (5, SHAPES[shape].outputs)
    losses = goal.losses(outputs, data.targets)
    assert losses.shape == (5,)
    for i in range(5):
        alone = goal.losses(outputs[i : i + 1], data.targets[i : i + 1])
        torch.testing.assert_close(losses[i : i + 1], alone)
    assert torch.equal(goal.scores(outputs, outputs.argmax(dim=1)), torch.ones(5))


@every_pair
def test_examples_do_not_mix(model: str, shape: str) -> None:
    check_model(build(model, shape), examples(shape, 1).inputs)


@every_pair
def test_building_draws_from_torchs_generator_and_nothing_else(model: str, shape: str) -> None:
    one, same = build(model, shape), build(model, shape)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


@every_pair
def test_an_engine_is_found_and_its_sum_is_that_of_autograd(model: str, shape: str) -> None:
    data = examples(shape, 4)
    engine = choose_engine(build(model, shape), SHAPES[shape].goal.losses, data).engine
    theta = engine.flat.theta.clone()
    clipped = engine.clipped_sum(data.inputs, data.targets, [theta], Clipping(1e6))
    expected = 4 * engine.mean_gradient(data.inputs, data.targets, theta)
    torch.testing.assert_close(clipped, expected, rtol=1e-3, atol=1e-5)


@every_pair
def test_engines_agree_on_the_clipped_sum(model: str, shape: str) -> None:
    data, losses = examples(shape, 3), SHAPES[shape].goal.losses

    def run(kind: type[GradientEngine]) -> torch.Tensor:
        engine = kind(build(model, shape), losses)
        thetas = [engine.flat.theta.clone(), 1.1 * engine.flat.theta]
        plan = Clipping(0.1, weights=(0.9, 0.1), scale=torch.full_like(thetas[0], 0.7))
        return engine.clipped_sum(data.inputs, data.targets, thetas, plan)

    expected = run(VmapEngine)
    torch.testing.assert_close(run(HooksEngine), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(run(FactoredEngine), expected, rtol=1e-3, atol=1e-6)


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
