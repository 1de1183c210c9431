"""Adapters find what a loop claims and releases, and the judge refutes the mistakes around them."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loops
import opacus_loops
import pytest
import torch
from loops import BATCH, CLASSES, CLIP, DELTA, EXAMPLES, FEATURES, SIGMA, STEPS, examples
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import clipnoise
from clipnoise.audit import Claim, from_opacus, from_private, from_pytorch
from clipnoise.audit.loops.accounting import least_epsilon
from clipnoise.audit.loops.claim import LoopJudgement
from clipnoise.audit.loops.verdict import judge_loop, read_loop
from clipnoise.audit.loops.watched import Loop, WatchedData
from clipnoise.errors import UserError

Adapter = Callable[..., tuple[Claim, Callable[..., Any]]]


def judged(adapter: Adapter, loop: Callable[..., Any], **given: Any) -> LoopJudgement:
    claim, train = adapter(loop, examples(), **given)
    return judge_loop(claim, train, examples(), level="quick")


def refuted_by(result: LoopJudgement) -> set[str]:
    return {each.name for each in result.refuted_by}


def made(result: LoopJudgement) -> set[str]:
    return {each.name for each in result.checks}


# ---- Opacus


class Opacus(opacus_loops.WithOpacus):
    """The loop of the other tests, without record."""

    def __call__(self, data: Any) -> nn.Module:  # type: ignore[override]
        return super().__call__(data, lambda values: values)


class OpacusBudget(Opacus):
    """Asks for an ε, and trains for more epochs than it says."""

    def __call__(self, data: Any) -> nn.Module:  # type: ignore[override]
        model = self.model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private_with_epsilon(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=DataLoader(data, batch_size=BATCH),
                target_epsilon=8,
                target_delta=DELTA,
                epochs=opacus_loops.EPOCHS,
                max_grad_norm=CLIP,
            )
            for _ in range(self.epochs):
                for inputs, targets in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs), targets).backward()
                    optimizer.step()
        return model


class OpacusQuiet(Opacus, opacus_loops.QuietNowAndThen):
    pass


class OpacusBlunted(Opacus):
    """Clips less than the engine was asked for."""

    def step(self, model: nn.Module, optimizer: Any, record: Callable[[Any], Any]) -> None:
        optimizer.max_grad_norm = 3 * CLIP
        optimizer.noise_multiplier = self.noise_multiplier / 3
        super().step(model, optimizer, record)


@pytest.mark.quick(mode=["hooks"])
@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch"])
def test_the_claim_of_a_loop_with_opacus_is_found(mode: str) -> None:
    claim, _ = from_opacus(Opacus(mode), examples(), delta=DELTA)
    assert claim.epsilon is not None
    assert claim.epsilon >= least_epsilon(claim, EXAMPLES, BATCH, STEPS)
    assert claim == Claim(
        epsilon=claim.epsilon,
        delta=DELTA,
        noise_multiplier=SIGMA,
        clip_norm=CLIP,
        expected_batch_size=BATCH,
        steps=STEPS,
        sampler="poisson",
    )


def test_the_budget_that_an_engine_was_asked_for_is_the_claim() -> None:
    claim, _ = from_opacus(OpacusBudget(epochs=1), examples())
    assert (claim.epsilon, claim.delta, claim.steps) == (8, DELTA, STEPS)


@pytest.mark.quick(mode=["hooks"])
@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch"])
def test_opacus_without_a_mistake_is_not_refuted(mode: str) -> None:
    result = judged(from_opacus, Opacus(mode), delta=DELTA)
    assert not result.refuted_by
    assert made(result) >= {"accounting", "sampler", "apart", "noise", "sensitivity", "published"}


def test_shuffled_batches_with_an_epsilon_for_them_are_not_refuted() -> None:
    claim, train = from_opacus(Opacus(poisson=False), examples())
    assert claim.sampler == "shuffled"
    true = loops.claim(sampler="shuffled")
    result = judge_loop(true, train, examples(), level="quick")
    assert not result.refuted_by


MISTAKEN_OPACUS: dict[str, tuple[Opacus, dict[str, Any], str]] = {
    "shuffled, accounted by Opacus as Poisson": (
        Opacus(poisson=False),
        {"delta": DELTA},
        "accounting",
    ),
    "more epochs than the budget is for": (OpacusBudget(epochs=8), {}, "accounting"),
    "steps without noise": (OpacusQuiet(), {"delta": DELTA}, "noise"),
    "another clip norm after make_private": (OpacusBlunted(), {"delta": DELTA}, "sensitivity"),
}


@pytest.mark.quick(mistake=["steps without noise"])
@pytest.mark.parametrize("mistake", MISTAKEN_OPACUS)
def test_a_mistake_around_opacus_is_refuted(mistake: str) -> None:
    loop, given, check = MISTAKEN_OPACUS[mistake]
    assert check in refuted_by(judged(from_opacus, loop, **given))


def test_what_else_changes_parameters_that_opacus_trains_is_an_error() -> None:
    class Head(Opacus, opacus_loops.CleanHead):
        pass

    with pytest.raises(UserError, match="something beside the optimizer changes parameters"):
        from_opacus(Head(), examples())


def test_a_loop_without_an_engine_is_an_error() -> None:
    with pytest.raises(UserError, match="released nothing"):
        from_opacus(Stepped(loops.Plain()), examples())


def test_an_unknown_sampler_must_be_given() -> None:
    def train(data: Any) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        drawing = RandomSampler(data, replacement=True)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=BATCH, sampler=drawing),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            poisson_sampling=False,
        )
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return model

    with pytest.raises(UserError, match="sampler: how the data loader draws is not known"):
        from_opacus(train, examples())
    claim, _ = from_opacus(train, examples(), sampler="fixed-size")
    assert claim.sampler == "fixed-size"


def test_an_engine_is_as_it_was_after_a_loop() -> None:
    before = PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon
    _, train = from_opacus(Opacus(epochs=1), examples())
    Loop(train).run(WatchedData(examples()), 0, limit=1)
    assert before == (PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon)


# ---- Plain PyTorch


class Stepped:
    """A loop whose releases go to an optimizer of PyTorch, and not to `record`."""

    def __init__(self, loop: loops.Plain) -> None:
        self.loop = loop
        loop.update = self.update  # type: ignore[method-assign]

    def __call__(self, data: Any) -> Any:
        self.optimizer: Any = None
        return self.loop(data, lambda values: values)

    def update(self, model: nn.Module, released: torch.Tensor) -> None:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        weight, bias = model.parameters()
        weight.grad = released[: weight.numel()].view_as(weight).clone()
        bias.grad = released[weight.numel() :].clone()
        self.optimizer.step()


def given(**changes: Any) -> dict[str, Any]:
    true = loops.claim(**changes)
    return {name: value for name, value in vars(true).items() if name != "steps"}


def test_the_steps_of_an_optimizer_are_found() -> None:
    claim, _ = from_pytorch(Stepped(loops.Plain()), examples(), **given())
    assert claim == loops.claim()


def test_an_optimizer_that_is_handed_private_gradients_is_not_refuted() -> None:
    result = judged(from_pytorch, Stepped(loops.Plain()), **given())
    assert not result.refuted_by
    assert made(result) >= {"accounting", "sampler", "apart", "noise", "sensitivity", "published"}


@pytest.mark.quick(mistake=[loops.HalfNoise])
@pytest.mark.parametrize(
    "mistake",
    [loops.HalfNoise, loops.NoNoiseInTheHead, loops.EpochsCountedWrong, loops.MicrobatchNorms],
    ids=lambda kind: kind.__name__,
)
def test_a_mistake_before_an_optimizer_is_refuted(mistake: type[loops.Plain]) -> None:
    assert loops.MISTAKES[mistake] in refuted_by(
        judged(from_pytorch, Stepped(mistake()), **given())
    )


def test_two_optimizers_are_an_error() -> None:
    def train(data: Any) -> nn.Module:
        model = nn.Linear(2, 2)
        for part in model.parameters():
            part.grad = torch.randn_like(part)
            torch.optim.SGD([part], lr=0.1).step()
        return model

    with pytest.raises(UserError, match="several optimizers step"):
        from_pytorch(train, examples())


def test_a_closure_is_an_error() -> None:
    def train(data: Any) -> None:
        parameter = nn.Parameter(torch.zeros(2))
        torch.optim.SGD([parameter], lr=0.1).step(lambda: parameter.sum())

    with pytest.raises(UserError, match="closure"):
        from_pytorch(train, examples())


def test_a_loop_that_records_needs_no_adapter() -> None:
    with pytest.raises(UserError, match="needs no adapter"):
        from_pytorch(loops.Plain(), examples())


def test_a_key_that_is_none_of_a_claim_is_named() -> None:
    with pytest.raises(UserError, match=r"claim\.sigma"):
        from_pytorch(Stepped(loops.Plain()), examples(), sigma=1.0)


def test_where_an_adapted_loop_fails_is_said() -> None:
    count = []

    def train(data: Any) -> nn.Module:
        count.append(1)
        if len(count) > 1:
            raise ValueError("no more")
        return Stepped(loops.Plain())(data)

    claim, watched = from_pytorch(train, examples(), **given())
    with pytest.raises(UserError, match=r"test_adapters.py:\d+: the loop failed: .*no more"):
        judge_loop(claim, watched, examples(), level="quick")


# ---- clipnoise.private


def own(
    *, sampler: str = "poisson", seed_in_the_code: bool = False, **settings: Any
) -> Callable[..., Any]:
    def train(data: Any, seed: int) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        training = clipnoise.private(
            model,
            nn.CrossEntropyLoss(reduction="none"),
            data,
            seed=3 if seed_in_the_code else seed,
            **{
                **{"method": "dp-sgd", "noise_multiplier": SIGMA, "clip_norm": CLIP},
                **{"delta": DELTA, "expected_batch_size": BATCH, "steps": STEPS},
                **{"learning_rate": 0.5, "sampler": sampler},
                **settings,
            },
        )
        for _ in training:
            pass
        return model

    return train


def test_the_claim_of_an_own_loop_is_found() -> None:
    claim, _ = from_private(own(), examples())
    assert claim.epsilon is not None
    assert claim.epsilon >= least_epsilon(claim, EXAMPLES, BATCH, STEPS)
    assert vars(claim) == {**vars(loops.claim()), "epsilon": claim.epsilon}


@pytest.mark.long
@pytest.mark.parametrize("method", ["dp-sgd", "dp-adambc"])
def test_an_own_loop_is_not_refuted(method: str) -> None:
    result = judged(from_private, own(method=method))
    assert not result.refuted_by
    assert made(result) >= {"accounting", "sampler", "apart", "noise", "sensitivity", "published"}


@pytest.mark.long  # test_loops.py has this and the next two in loops that record
def test_noise_of_a_seed_in_the_code_is_refuted() -> None:
    assert "noise" in refuted_by(judged(from_private, own(seed_in_the_code=True)))


@pytest.mark.long
def test_an_epsilon_of_half_the_steps_is_refuted() -> None:
    half, _ = from_private(own(steps=STEPS // 2), examples())
    assert refuted_by(judged(from_private, own(), epsilon=half.epsilon)) == {"accounting"}


@pytest.mark.long
def test_a_model_that_holds_a_mean_of_the_examples_is_refuted() -> None:
    def train(data: Any, seed: int) -> nn.Module:
        model = own()(data, seed)
        model.mean = nn.Parameter(torch.stack([inputs for inputs, _ in data]).mean(0))
        return model

    assert "published" in refuted_by(judged(from_private, train))


def test_several_releases_in_a_step_cannot_be_claimed() -> None:
    with pytest.raises(UserError, match="cannot be claimed"):
        from_private(own(method="dp-sgd-quantile"), examples())


# ---- The documentation

SCRIPT = """
import sys
sys.path[:0] = [{folder!r}]
import loops
import test_adapters, test_jax_adapter

data, train = loops.examples(), {loop}
"""
SCRIPTS = {
    "opacus": "test_adapters.Opacus()",
    "pytorch": "test_adapters.Stepped(loops.Plain())",
    "private": "test_adapters.own()",
    "jax_privacy": "test_jax_adapter.loop()",
}


@pytest.mark.parametrize("library", SCRIPTS)
def test_the_lines_of_the_documentation_find_a_claim(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "jax_privacy":
        pytest.importorskip("jax_privacy")
    page = (Path(__file__).parents[2] / "docs" / "test-your-code.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (each for each in blocks if f"train = from_{library}(" in each)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = str(Path(__file__).parent)
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=folder, loop=SCRIPTS[library]))
    (tmp_path / "loop.py").write_text(block)
    try:
        claim = read_loop(tmp_path / "loop.py").claim
    finally:
        sys.modules.pop("script", None)
    assert (claim.noise_multiplier, claim.clip_norm, claim.steps) == (SIGMA, CLIP, STEPS)
    assert claim.expected_batch_size == BATCH
