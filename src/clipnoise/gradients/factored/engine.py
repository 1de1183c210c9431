"""The factored engine: one forward and one backward pass, then norms and sums by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from clipnoise.core.clip_rules import SHORTEST
from clipnoise.core.clipping import Clipping
from clipnoise.gradients.clipping import clip_factors, is_finite, with_extra
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, part_of, parts
from clipnoise.gradients.factored import recurrent
from clipnoise.gradients.factored.attention import record_attention
from clipnoise.gradients.factored.convolution import record_conv1d, record_conv2d
from clipnoise.gradients.factored.embedding import record_embedding
from clipnoise.gradients.factored.linear import record_linear
from clipnoise.gradients.factored.normalisation import (
    record_group_norm,
    record_layer_norm,
    record_rms_norm,
)
from clipnoise.gradients.factored.recording import Recording, Rule
from clipnoise.gradients.factored.uses import (
    Constant,
    Groups,
    ParameterGradient,
    Squares,
    Use,
    slack_of,
    times_larger,
)
from clipnoise.models.recomputed import handled

if TYPE_CHECKING:
    from clipnoise.data.several import Inputs
    from clipnoise.gradients.engine import Losses

LOOSE = 5e-4  # how much further than to C a vector may be clipped before its norm is made exact


def rules() -> dict[Any, Rule]:
    """Return every rule, keyed by the torch function that it replaces."""
    layers: dict[Any, Rule] = {
        functional.linear: record_linear,
        functional.conv1d: record_conv1d,
        functional.conv2d: record_conv2d,
        functional.embedding: record_embedding,
        functional.layer_norm: record_layer_norm,
        functional.rms_norm: record_rms_norm,
        functional.group_norm: record_group_norm,
    }
    return {
        **{function: _rule_of_layer(function, rule) for function, rule in layers.items()},
        functional.multi_head_attention_forward: record_attention,
        **recurrent.rules(),
        handled: Recording.block,
    }


def _rule_of_layer(function: Callable[..., Any], rule: Rule) -> Rule:
    """Return a rule that sees the whole batch as one that is called wherever the network is."""

    def of_layer(recording: Recording, *arguments: Any, **options: Any) -> Any:
        if not arguments:
            arguments = (options.pop("input"),)
        if recording.hides and any(map(_is_computed, [*arguments[1:], *options.values()])):
            return recording.by_copies(function, arguments, options)
        return recording.layer(rule, *arguments, **options)

    return of_layer


def _is_computed(value: object) -> bool:
    """Return whether a weight is no parameter, and so may differ between examples."""
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


class FactoredEngine(GradientEngine):
    """Clipped sums from each layer's inputs and output gradients.

    Each example's squared norm follows from these factors, layer by layer: by inner products where
    that costs less (Goodfellow 2015; Li et al. 2022, ghost clipping; Bu et al. 2023, mixed ghost
    clipping and book-keeping), by instantiating a few gradients at a time elsewhere. The factors,
    weighted by each example's clipping factor, then give the sum without another backward pass.
    All per-example gradients are never held at once.
    """

    name: ClassVar[str] = "factored"

    def __init__(self, network: nn.Module, losses: Losses) -> None:
        super().__init__(network, losses)
        self._rules = rules()

    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        whole = Groups.single(len(inputs))
        (piece,) = whole.pieces(0)
        rows = []
        masks = masks or Masks.first(len(inputs))
        uses_by_parameter = self._uses(inputs, targets, theta, masks, 1.0)
        for uses, shape in zip(uses_by_parameter, self.flat.shapes, strict=True):
            zeros = theta.new_zeros(len(inputs), *shape)
            rows.append(ParameterGradient(uses, whole).instantiate(piece) if uses else zeros)
        return self.flat.join_rows(rows)

    def clipped_sum(self, inputs: Inputs, targets: Tensor, clipping: Clipping) -> Tensor:
        by_rows = clipping.of.losses or clipping.weighed_at is not None
        if clipping.clip_norm is None or by_rows:
            return super().clipped_sum(inputs, targets, clipping)
        count = len(inputs)
        if count == 0:
            return super().clipped_sum(inputs, targets, clipping)
        total = torch.zeros_like(self.flat.theta)
        masks = Masks.of(clipping, count)
        groups, order = Groups.of(clipping, count)
        groups = replace(groups, at_once=times_larger(total))
        x, y, ordered = inputs, targets, masks
        if order is not None:
            x, y, ordered = inputs[order], targets[order], masks.reordered(order)
        gradients = self.gradients(x, y, clipping, groups, ordered)
        scales = (
            [None] * len(gradients) if clipping.scale is None else self.flat.split(clipping.scale)
        )
        layers = [range(len(gradients))] if clipping.rule.per == "example" else self.flat.layers
        pairs, into = list(zip(gradients, scales, strict=True)), self.flat.split(total)
        of_layers = [_norms([pairs[p] for p in layer], groups, total) for layer in layers]
        norms = torch.stack(of_layers) if len(of_layers) > 1 else of_layers[0].unsqueeze(0)
        factors = clip_factors(norms, clipping)
        for layer, weights in zip(layers, factors.to(total.dtype).unbind(), strict=True):
            for place in layer:
                gradient, scale = pairs[place]
                gradient.add_weighted(weights, scale, into[place])
        if is_finite(total):
            return with_extra([total], norms, factors, clipping)
        # Each vector whose norm is not finite counts as zero. Its examples are left out and not
        # weighted by zero, because zero times infinity is nan.
        rows = groups.to_examples(norms.isfinite().all(dim=0)).nonzero().squeeze(1).cpu()
        clipping = replace(clipping, examples=masks.examples)  # those left keep their masks
        if len(rows) < count:
            rows = rows if order is None else order[rows].sort().values
            return self.clipped_sum(inputs[rows], targets[rows], part_of(clipping, rows))
        # Some product of finite factors is too large. Only vectors with such a product are formed
        # explicitly: near the largest numbers, a norm that the factors give may overflow there.
        if groups.count == 1:
            return super().clipped_sum(inputs, targets, clipping)
        total = clipping.of.zeros(total)
        for chosen, part in parts(clipping, count, 1):
            total += self.clipped_sum(inputs[chosen], targets[chosen], part)
        return total

    def gradients(
        self,
        inputs: Inputs,
        targets: Tensor,
        clipping: Clipping,
        groups: Groups,
        masks: Masks,
    ) -> list[ParameterGradient]:
        """Run the passes and return the gradient of each parameter, as its uses at all points.

        Args:
            inputs, targets: in the order of the groups.
            clipping: says at which points, with which weights, and with which offset.
            groups: how the examples are grouped.
            masks: of the examples.
        """
        collected: list[list[Use]] = [[] for _ in self.flat.parameters]
        for weight, theta in zip(clipping.weights, clipping.points, strict=True):
            share = weight / clipping.group_size
            uses_by_parameter = self._uses(inputs, targets, theta, masks, share)
            for known, uses in zip(collected, uses_by_parameter, strict=True):
                known += uses
        if clipping.offset is not None:
            for known, value in zip(collected, self.flat.split(clipping.offset), strict=True):
                known.append(Constant(value / clipping.group_size))
        return [ParameterGradient(uses, groups) for uses in collected]

    def _uses(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks, weight: float
    ) -> list[list[Use]]:
        """Run one forward and one backward pass; return the uses of each parameter."""
        self.flat.load(theta)
        recording = Recording(self.flat.parameters, self._rules, len(inputs))
        with torch.enable_grad():
            losses = self.losses_of_each(inputs, targets, masks, recording.over)
        return recording.uses(losses, weight)


def _norms(
    pairs: Sequence[tuple[ParameterGradient, Tensor | None]], groups: Groups, like: Tensor
) -> Tensor:
    """Return the norm of each group's vector, which rounding never makes too low.

    Where so much cancels that the slack would clip a vector further than by LOOSE, the vector is
    formed: its norm then errs by roundings of what cancels, and no longer of its square.

    Args:
        pairs: the gradient of each parameter that counts, and its s, or None for ones.
        groups: how the examples are grouped, into n groups.
        like: has the dtype and the device of the parameters.

    Returns:
        Shape (n,), float64.
    """
    used = [(gradient, scale) for gradient, scale in pairs if gradient.uses]
    if not used:
        return like.new_zeros(groups.count, dtype=torch.float64)
    squares, slack = Squares.total([gradient.squared_norms(scale) for gradient, scale in used])
    if slack is None:
        return squares.sqrt()
    norms: Tensor = (squares + slack).sqrt()
    much = (2 * LOOSE * squares).clamp_(min=(LOOSE * SHORTEST) ** 2)  # a vector without a length
    for (group,) in (slack > much).nonzero().tolist():
        exact = (gradient.squared_norm_of(group, scale) for gradient, scale in used)
        formed = sum(exact, start=squares.new_zeros(()))
        rounding = slack_of(slack[group], like.dtype)
        norms[group] = torch.minimum(norms[group], formed.sqrt() + rounding.sqrt())
    return norms
