"""What is published: whether it was trained, what it holds beside releases, and canaries in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clipnoise.audit.curve import Guesses
from clipnoise.audit.loops.boundary import REPEATABLE
from clipnoise.audit.loops.claim import LoopFinding
from clipnoise.audit.loops.experiments import GUESSES, Experiments
from clipnoise.audit.loops.watched import Item, Trace, parameters_of

RUNS = {"quick": 1, "full": 8}  # with canaries
SHARE = 0.25  # of the examples that are canaries, at most
MOST = 200  # canaries in a run
NORMS = (nn.modules.batchnorm._NormBase,)
NOTHING = "needs a loop that returns its model, or tensors of it"


def check_training(runs: Experiments) -> LoopFinding:
    """Train on other examples: the parameters that are published must differ."""
    name = "training"
    one, other = runs.whole(0), runs.elsewhere(0)
    parameters, others = parameters_of(one.published), parameters_of(other.published)
    if not parameters:
        return LoopFinding.skipped(name, NOTHING)
    if not any(_differs(parameters, others, each) for each in parameters):
        return LoopFinding(name, False, "other examples lead to the same parameters, bit for bit")
    wide = "differ with the examples" + ("" if runs.repeatable else ", or with the noise")
    return LoopFinding(name, True, f"the parameters {wide}", "a model that no step changes")


def _differs(one: dict[str, Tensor], other: dict[str, Tensor], name: str) -> bool:
    return name in other and not torch.equal(one[name], other[name])


def check_published(runs: Experiments) -> LoopFinding:
    """Look for what follows the examples in what is published, and was never released."""
    name = "published"
    if not runs.repeatable:
        return LoopFinding.skipped(name, REPEATABLE)
    one, other = runs.whole(0), runs.elsewhere(0)
    parameters, others = parameters_of(one.published), parameters_of(other.published)
    if not parameters:
        return LoopFinding.skipped(name, NOTHING)
    moved = {key: part for key, part in parameters.items() if _differs(parameters, others, key)}
    problems = [*_never_released(one, moved), *_statistics(one.published, other.published)]
    if problems:
        return LoopFinding(name, False, "; ".join(problems))
    said = f"all {len(moved)} tensors that follow the examples have the shapes of releases"
    power = "a trained tensor that is in no release; running statistics of a normalisation"
    return LoopFinding(name, True, said, power, tuple(_buffers(one.published, other.published)))


def _never_released(trace: Trace, moved: dict[str, Tensor]) -> list[str]:
    """Return which tensors follow the examples, although nothing of their shape is released."""
    numbers = sum(part.numel() for part in moved.values())
    released = sum(int(np.prod(shape)) for shape in trace.shapes)
    if numbers <= released:
        return []
    free = Counter(trace.shapes)
    names = []
    for key, part in moved.items():
        shape = tuple(part.shape)
        if free[shape]:
            free[shape] -= 1
        else:
            names.append(key)
    which = f": {', '.join(names[:5])}" if len(trace.shapes) > 1 else ""
    return [f"{numbers} published numbers follow the examples, a step releases {released}{which}"]


def _statistics(one: object, other: object) -> list[str]:
    """Return the layers whose running statistics follow the examples."""
    if not isinstance(one, nn.Module) or not isinstance(other, nn.Module):
        return []
    layers = [key for key, layer in one.named_modules() if isinstance(layer, NORMS)]
    changed = [
        f"{key}.{part}"
        for key in layers
        for part, value in one.get_submodule(key).named_buffers(recurse=False)
        if not torch.equal(value, other.get_submodule(key).get_buffer(part))
    ]
    return [f"running statistics of the examples are published: {changed[0]}"] if changed else []


def _buffers(one: object, other: object) -> list[str]:
    """Return a remark on other buffers that follow the examples."""
    if not isinstance(one, nn.Module) or not isinstance(other, nn.Module):
        return []
    theirs = dict(other.named_buffers())
    names = [k for k, v in one.named_buffers() if k in theirs and not torch.equal(v, theirs[k])]
    if not names:
        return []
    return [f"buffers that differ with the examples, check what they keep: {', '.join(names[:5])}"]


def check_canaries(runs: Experiments) -> LoopFinding:
    """Guess from the published model which of some far-off examples took part."""
    name, claim = "canaries", runs.claim
    if claim.epsilon is None or claim.delta is None:
        return LoopFinding.skipped(name, "needs epsilon and delta in the claim")
    count = min(MOST, int(SHARE * runs.examples))
    scored = [_scores(runs, seed, count) for seed in range(RUNS[runs.level])]
    if count < 1 or any(one is None for one in scored):
        return LoopFinding.skipped(name, "needs a loop that returns a model of inputs like those")
    scores, coins = (np.concatenate(part) for part in zip(*filter(None, scored), strict=True))
    guesses, perfect = Guesses.by(scores, coins), Guesses.by(coins.astype(float), coins)
    shown, most = (
        each.epsilon_at_least(claim.delta, confidence=1 - GUESSES) for each in (guesses, perfect)
    )
    said = (
        f"{guesses.right[0]} of {guesses.made[0]} guesses about {guesses.canaries} canaries are "
        f"right, and those of the surest show ε ≥ {shown:.2f}"
    )
    if shown > claim.epsilon:
        return LoopFinding(name, False, f"{said}; claimed is {claim.epsilon:g}")
    power = (
        f"a model that gives every canary away shows ε ≥ {most:.2f}; an attack on what "
        "is published stays far below the ε of a sound loop"
    )
    return LoopFinding(name, True, said, power)


def _scores(runs: Experiments, seed: int, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Train with canaries by fair coins; return minus the loss of each, and its coin.

    A canary is a real example out of range, with the target of another one. One that is out is
    left out.
    """
    draw = torch.Generator().manual_seed(10**6 + seed)
    places = torch.randperm(runs.examples, generator=draw)[:count].tolist()
    coins = torch.rand(count, generator=draw) < 0.5
    items = {place: (runs.hostile(like=place)[0], runs.other(place)[1]) for place in places}
    out = {place for place, there in zip(places, coins.tolist(), strict=True) if not there}
    kept = [place for place in range(runs.examples) if place not in out]
    trace = runs.run(1000 + seed, lambda index, item: items.get(index, item), kept=kept)
    losses = _losses(trace.published, [items[place] for place in places])
    return None if losses is None else (-losses.double().numpy(), coins.numpy())


def _losses(model: object, items: list[Item]) -> Tensor | None:
    """Return the loss of each item under a model, or None where it takes no such items."""
    if not callable(model):
        return None
    if isinstance(model, nn.Module):
        model.eval()
    with torch.no_grad():
        try:
            inputs, targets = map(_stacked, zip(*items, strict=True))
            outputs = model(inputs)
        except Exception:  # whatever a model says of an input that it cannot take
            return None
    if not isinstance(outputs, Tensor) or len(outputs) != len(items):
        return None
    outputs = outputs.nan_to_num()
    if not targets.is_floating_point() and outputs.ndim == 2 and outputs.shape[1] > 1:
        return nn.functional.cross_entropy(outputs, targets.long(), reduction="none")
    return (outputs.reshape(len(items), -1) - targets.reshape(len(items), -1)).square().sum(1)


def _stacked(values: Sequence[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values])
