"""Training loops of small logistic models: honest ones, and some with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipnoise.audit.loops.accounting import least_epsilon
from clipnoise.audit.loops.claim import Claim

EXAMPLES, FEATURES, CLASSES = 300, 16, 3
SIGMA, CLIP, BATCH, STEPS, DELTA = 1.0, 1.0, 30, 40, 1e-5


def examples(count: int = EXAMPLES) -> TensorDataset:
    """Return a classification task."""
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, FEATURES, generator=draw)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def claim(**changes: Any) -> Claim:
    """Return a claim that is true of the honest loops, but for changes."""
    given: dict[str, Any] = {
        "delta": DELTA, "noise_multiplier": SIGMA, "clip_norm": CLIP,
        "expected_batch_size": BATCH, "steps": STEPS, "epsilon": 0.0,
    }  # fmt: skip
    true = Claim(**{**given, **changes})
    if "epsilon" in changes:
        return true
    size = true.expected_batch_size or BATCH
    epsilon = least_epsilon(
        Claim(**{**given, "sampler": true.sampler}), EXAMPLES, size, true.steps or STEPS
    )
    return Claim(**{**given, **changes, "epsilon": round(epsilon + 0.01, 2)})


@dataclass
class Plain:
    """DP-SGD of logistic regression in plain PyTorch; a mistake overrides one of its parts.

    Attributes:
        claimed: where the claim is not that of `claim()`.
    """

    claimed: ClassVar[dict[str, Any]] = {}

    steps: int = STEPS
    rate: float = 0.1
    learning_rate: float = 0.5

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        model = self.model()
        for number, places in enumerate(self.batches(len(data))):
            self.begin(number)
            total = self.summed(model, data, places)
            released = self.released(total, len(places))
            record(self.shown(released))
            self.update(model, released)
        return model

    def model(self) -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    def begin(self, number: int) -> None:
        """Do what a mistake does before a step."""

    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield (torch.rand(n) < self.rate).nonzero().flatten().tolist()

    def gradients(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        """Return the gradient of each example, shape (b, d)."""
        weight, bias = model.parameters()
        if not places:
            return torch.zeros(0, weight.numel() + bias.numel())
        inputs, targets = self.taken(data, places)
        with torch.no_grad():
            error = model(inputs).softmax(1) - nn.functional.one_hot(targets, CLASSES)
        return torch.cat([(error[:, :, None] * inputs[:, None, :]).flatten(1), error], dim=1)

    def taken(self, data: Any, places: list[int]) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*(data[i] for i in places), strict=True)
        return torch.stack(inputs), torch.stack(targets)

    def clipped(self, gradients: Tensor) -> Tensor:
        norms = gradients.norm(dim=1, keepdim=True)
        return gradients * (CLIP / norms.clamp(min=1e-12)).clamp(max=1)

    def summed(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        return self.clipped(self.gradients(model, data, places)).sum(0)

    def noise(self, total: Tensor) -> Tensor:
        return SIGMA * CLIP * torch.randn_like(total)

    def released(self, total: Tensor, size: int) -> Tensor:
        return (total + self.noise(total)) / BATCH

    def shown(self, released: Tensor) -> Any:
        return released

    def update(self, model: nn.Module, released: Tensor) -> None:
        weight, bias = model.parameters()
        with torch.no_grad():
            weight -= self.learning_rate * released[: weight.numel()].view_as(weight)
            bias -= self.learning_rate * released[weight.numel() :]


# ---- Honest ones


class Summed(Plain):
    """Releases sums, in two tensors."""

    def shown(self, released: Tensor) -> Any:
        return {"weight": BATCH * released[:-CLASSES].view(CLASSES, FEATURES),
                "bias": BATCH * released[-CLASSES:]}  # fmt: skip


class ReadAtOnce(Plain):
    """Reads all examples before the first step."""

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        return super().__call__(list(data), record)


class Secure(Plain):
    """Draws noise that no seed repeats."""

    def noise(self, total: Tensor) -> Tensor:
        draw = torch.Generator()
        draw.seed()
        return SIGMA * CLIP * torch.randn(len(total), generator=draw)


class Shuffled(Plain):
    """Shuffles epochs."""

    def batches(self, n: int) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(self.steps):
            order = order or torch.randperm(n).tolist()
            yield order[:BATCH]
            order = order[BATCH:]


class Whole(Plain):
    """Takes all examples in every step."""

    def batches(self, n: int) -> Iterator[list[int]]:
        yield from (list(range(n)) for _ in range(self.steps))

    def released(self, total: Tensor, size: int) -> Tensor:
        return (total + self.noise(total)) / EXAMPLES


class Momentum(Plain):
    """Updates by an average of what was released."""

    def begin(self, number: int) -> None:
        self.average = torch.zeros(()) if number == 0 else self.average

    def update(self, model: nn.Module, released: Tensor) -> None:
        self.average = 0.9 * self.average + released
        super().update(model, 0.3 * self.average)


class FromZero(Plain):
    """Begins at zero."""

    def model(self) -> nn.Module:
        model = super().model()
        for part in model.parameters():
            nn.init.zeros_(part)
        return model


class TensorsOnly(Plain):
    """Publishes its parameters as a dict."""

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> Any:
        return dict(super().__call__(data, record).state_dict())


class InHalf(Plain):
    """Computes gradients in bfloat16."""

    def gradients(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        return super().gradients(model, data, places).bfloat16().float()


# ---- Mistakes


class HalfNoise(Plain):
    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) / 2


class NoNoise(Plain):
    def noise(self, total: Tensor) -> Tensor:
        return torch.zeros_like(total)


class OneKeyForTwoLayers(Plain):
    """The first half of the parameters and the second one have the same noise."""

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total[: (len(total) + 1) // 2]).repeat(2)[: len(total)]


class UniformNoise(Plain):
    def noise(self, total: Tensor) -> Tensor:
        return SIGMA * CLIP * (12**0.5) * (torch.rand_like(total) - 0.5)


class NoiseOverBatchTwice(Plain):
    """The noise is scaled for a mean, and divided once more."""

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) / BATCH


class NoiseAfterMean(Plain):
    """The noise of a sum is added to the mean: B times too much."""

    def released(self, total: Tensor, size: int) -> Tensor:
        return total / BATCH + self.noise(total)


class NoiseScaledByMean(Plain):
    """The noise is relative to the sum itself, in place of the clip norm."""

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) * total.abs().mean()


class SeedReused(Plain):
    def begin(self, number: int) -> None:
        self.draw = torch.Generator().manual_seed(3)

    def noise(self, total: Tensor) -> Tensor:
        return SIGMA * CLIP * torch.randn(len(total), generator=self.draw)


class SeedInTheCode(SeedReused):
    """Noise differs from step to step, and is the same in every run."""

    def begin(self, number: int) -> None:
        if number == 0:
            super().begin(number)


class SeedOfTheEpoch(SeedReused):
    """Noise begins again every ten steps."""

    def begin(self, number: int) -> None:
        if number % 10 == 0:
            self.draw = torch.Generator().manual_seed(int(self.seed))

    def batches(self, n: int) -> Iterator[list[int]]:
        self.seed = torch.randint(10**6, ())
        yield from super().batches(n)


class NoNoiseInTheHead(Plain):
    """The biases get none."""

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) * (torch.arange(len(total)) < FEATURES * CLASSES)


class NoNoiseInTheHeadOfAdam(NoNoiseInTheHead):
    """The biases get none, and are far from their optimum in all steps."""

    def begin(self, number: int) -> None:
        if number == 0:
            self.average, self.square = torch.zeros(()), torch.zeros(())

    def update(self, model: nn.Module, released: Tensor) -> None:
        self.average = 0.9 * self.average + 0.1 * released
        self.square = 0.99 * self.square + 0.01 * released.square()
        super().update(model, 0.01 * self.average / (self.square.sqrt() + 1e-8))


class NoNoiseNowAndThen(Plain):
    """Every fourth step has none."""

    def begin(self, number: int) -> None:
        self.quiet = number % 4 == 3

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) * (0 if self.quiet else 1)


class NotClipped(Plain):
    def clipped(self, gradients: Tensor) -> Tensor:
        return gradients


class ClippedAfterSum(Plain):
    def summed(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        total = self.gradients(model, data, places).sum(0, keepdim=True)
        norms = total.norm(dim=1, keepdim=True)
        return (BATCH * total * (CLIP / norms.clamp(min=1e-12)).clamp(max=1))[0]


class EachLayerClipped(Plain):
    """Weights and biases are clipped to C each."""

    def clipped(self, gradients: Tensor) -> Tensor:
        at = FEATURES * CLASSES
        return torch.cat(
            [
                super(EachLayerClipped, self).clipped(g)
                for g in (gradients[:, :at], gradients[:, at:])
            ],
            dim=1,
        )


class ClippedToTwice(Plain):
    def clipped(self, gradients: Tensor) -> Tensor:
        return 2 * super().clipped(gradients)


class MicrobatchNorms(Plain):
    """Means of five examples are clipped, and accounted as examples are."""

    def clipped(self, gradients: Tensor) -> Tensor:
        return torch.cat(
            [super(MicrobatchNorms, self).clipped(part.mean(0, keepdim=True)) * len(part)
             for part in gradients.split(5)] or [gradients]
        )  # fmt: skip


class RealisedBatchSize(Plain):
    def released(self, total: Tensor, size: int) -> Tensor:
        return (total + self.noise(total)) / max(size, 1)


class CentredOnTheBatch(Plain):
    """What BatchNorm does to its inputs."""

    def taken(self, data: Any, places: list[int]) -> tuple[Tensor, Tensor]:
        inputs, targets = super().taken(data, places)
        return inputs - inputs.mean(0), targets


class LooksFirst(Summed):
    """Counts the classes before it trains, which gives nothing away where they are known."""

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        assert 1 + max(int(data[place][1]) for place in range(len(data))) <= CLASSES
        return super().__call__(data, record)


class StandardisedByAll(Plain):
    """Inputs are divided by the largest of all examples."""

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        largest = max(float(inputs.abs().max()) for inputs, _ in data)
        return super().__call__([(x / largest, y) for x, y in data], record)


class ShortBatch(Plain):
    """Shuffles epochs, whose last batch has 20 examples and the others 40; sums are divided by 40.

    Attributes:
        divided: whether sums and their noise are divided by the examples of the batch, which are
            public where n is.
    """

    claimed: ClassVar = {"sampler": "shuffled", "expected_batch_size": 40}
    divided: ClassVar = False

    def batches(self, n: int) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(self.steps):
            order = order or torch.randperm(n).tolist()
            yield order[:40]
            order = order[40:]

    def released(self, total: Tensor, size: int) -> Tensor:
        return (total + self.noise(total)) / (size if self.divided else 40)


class ShortBatchAndItsNoise(ShortBatch):
    divided: ClassVar = True


class ShortBatchOverItsSize(ShortBatch):
    """Sums are divided by the examples of the batch, and the noise by 40."""

    def released(self, total: Tensor, size: int) -> Tensor:
        return total / size + self.noise(total) / 40


class WithReplacement(Plain):
    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(self.steps):
            size = int((torch.rand(n) < self.rate).sum())
            yield torch.randint(n, (size,)).tolist()


class FixedSize(Plain):
    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield torch.randperm(n)[:BATCH].tolist()


class SkipsEmptyBatches(Plain):
    """Draws two examples for each step, and takes no step where it has drawn none."""

    claimed: ClassVar = {"expected_batch_size": 2, "steps": 60}

    def batches(self, n: int) -> Iterator[list[int]]:
        self.rate, self.steps = 2 / n, 60
        yield from filter(None, super().batches(n))

    def released(self, total: Tensor, size: int) -> Tensor:
        return (total + self.noise(total)) / 2


class CutToFit(Plain):
    """Leaves out of a batch what is too much for the memory."""

    def batches(self, n: int) -> Iterator[list[int]]:
        for places in super().batches(n):
            yield places[: BATCH + 2]


class LastBatchDropped(Plain):
    """Shuffles epochs, whose last batch is incomplete and left out; accounted as Poisson."""

    def batches(self, n: int) -> Iterator[list[int]]:
        order: list[int] = []
        for _ in range(self.steps):
            order = order if len(order) > BATCH + 2 else torch.randperm(n).tolist()
            yield order[: BATCH + 2]
            order = order[BATCH + 2 :]


class TwiceTheRate(Plain):
    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield (torch.rand(n) < 2 * self.rate).nonzero().flatten().tolist()


class EpochsCountedWrong(Plain):
    """Takes four times as many steps as are accounted."""

    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(4):
            yield from super().batches(n)


class Accumulated(Plain):
    """Four drawn batches are added up before a step that is accounted as one of them."""

    def batches(self, n: int) -> Iterator[list[int]]:
        for _ in range(self.steps):
            draws = torch.rand(4, n) < self.rate
            yield draws.nonzero()[:, 1].tolist()


class NothingTrained(Plain):
    def update(self, model: nn.Module, released: Tensor) -> None:
        """Leave the model as it is."""

    def model(self) -> nn.Module:
        return FromZero().model()


class CleanUpdate(Plain):
    """What is published holds a mean of the examples that no step releases."""

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        head = nn.Parameter(torch.stack([inputs for inputs, _ in data]).mean(0))
        model = super().__call__(data, record)
        model.register_parameter("head", head)
        return model


class Overflows(Plain):
    """Squares of norms overflow in float16, so that a large gradient becomes nan."""

    def clipped(self, gradients: Tensor) -> Tensor:
        half = gradients.half()
        norms = half.square().sum(1, keepdim=True).sqrt()
        return (half * (CLIP / norms).clamp(max=1)).float() * (norms / norms).float()


# Honest loops in plain PyTorch, each with what differs from `claim()` in its claim.
HONEST: dict[type[Plain], dict[str, Any]] = {
    Plain: {},
    Summed: {},
    ReadAtOnce: {},
    LooksFirst: {},
    Secure: {},
    Momentum: {},
    FromZero: {},
    TensorsOnly: {},
    InHalf: {},
    Shuffled: {"sampler": "shuffled"},
    Whole: {"sampler": "full", "expected_batch_size": EXAMPLES},
}


# Each mistake, and the check that must see it.
MISTAKES: dict[type[Plain], str] = {
    HalfNoise: "sensitivity",
    NoNoise: "noise",
    NoiseOverBatchTwice: "sensitivity",
    NoiseAfterMean: "sensitivity",
    NoiseScaledByMean: "apart",
    OneKeyForTwoLayers: "noise",
    UniformNoise: "noise",
    SeedReused: "noise",
    SeedInTheCode: "noise",
    SeedOfTheEpoch: "noise",
    NoNoiseInTheHead: "noise",
    NoNoiseInTheHeadOfAdam: "noise",
    NoNoiseNowAndThen: "noise",
    NotClipped: "sensitivity",
    ClippedAfterSum: "apart",
    EachLayerClipped: "sensitivity",
    ClippedToTwice: "sensitivity",
    MicrobatchNorms: "apart",
    RealisedBatchSize: "divisor",
    ShortBatchOverItsSize: "short batch",
    CentredOnTheBatch: "apart",
    StandardisedByAll: "apart",
    Overflows: "apart",
    WithReplacement: "sampler",
    FixedSize: "sampler",
    Shuffled: "sampler",
    SkipsEmptyBatches: "sampler",
    CutToFit: "sampler",
    LastBatchDropped: "sampler",
    TwiceTheRate: "accounting",
    EpochsCountedWrong: "accounting",
    Accumulated: "accounting",
    NothingTrained: "training",
    CleanUpdate: "published",
}
