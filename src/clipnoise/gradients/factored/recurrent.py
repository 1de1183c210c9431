"""LSTM layers: their gates are linear in the input and in the previous state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, linear

from clipnoise.gradients.apart import UnsupportedError
from clipnoise.gradients.factored.linear import Outer
from clipnoise.gradients.factored.recording import Recording
from clipnoise.gradients.factored.uses import ExplicitGradients


def record_lstm(
    recording: Recording,
    input: Tensor,
    state: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    drop: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM, one layer and direction at a time, and record the factors of each.

    Args:
        recording: of this pass.
        input: shape (b, T, p), or (T, b, p).
        state: h and c before the first step, each (layers · directions, b, width).
        parameters: for each layer and direction (W, U), with biases (W, U, w, u).
        has_biases: whether the layers have biases.
        num_layers: how many layers are stacked.
        drop: dropout rate between layers.
        train: whether dropout is applied.
        bidirectional: whether each layer also runs from the last step to the first.
        batch_first: whether the first axis of the input is that of the examples.

    Returns:
        The states h of the last layer, and h and c after the last step.
    """
    if not isinstance(parameters, list | tuple):
        raise UnsupportedError("an LSTM on packed sequences")
    if any(recording.trains(part) for part in state):
        raise UnsupportedError("an LSTM with a trained initial state")
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(parameters) != each * directions * num_layers:
        raise UnsupportedError("an LSTM with projections")
    rows = input if batch_first else input.transpose(0, 1)
    ends: list[Sequence[Tensor]] = []
    for layer in range(num_layers):
        if layer and train and drop:
            with recording.dropout:
                rows = dropout(rows, drop)
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = parameters[number * each : (number + 1) * each]
            flip = [1] if direction else []
            states, *end = recording.layer(
                _layer, rows.flip(flip), state[0][number], state[1][number], weights, inputs=3
            )
            outputs.append(states.flip(flip))
            ends.append(end)
        rows = torch.cat(outputs, dim=2) if directions > 1 else outputs[0]
    states = rows if batch_first else rows.transpose(0, 1)
    h, c = (torch.stack(part) for part in zip(*ends, strict=True))
    return states, h, c


def _layer(
    recording: Recording, rows: Tensor, h: Tensor, c: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer in one direction: rows (b, T, p) → states (b, T, width), and the last h and c.

    The input's contribution to the gates is computed first: all gradients follow from the gates'.
    """
    inward, across, *biases = parameters
    recording.examples_of(rows, single=True)
    constants = [recording.plain(bias, rows) for bias in biases]
    both = constants[0] + constants[1] if constants else None
    gates = linear(rows, recording.plain(inward, rows), both)
    if not gates.requires_grad:  # only what the layer makes of its own state is trained
        gates.requires_grad_()
    tap = recording.tap(gates)
    with torch.autocast(gates.device.type, enabled=False):
        start = (part.to(across.dtype) for part in (gates, h, c))
        states, last = Steps.apply(*start, recording.plain(across))
    inputs = recording.hold(rows)
    past = torch.cat([h.unsqueeze(1), states[:, :-1]], dim=1).detach()
    recording.use(inward, tap, lambda grad: Outer(grad, inputs))
    recording.use(across, tap, lambda grad: Outer(grad, past))
    for bias in biases:
        recording.use(bias, tap, lambda grad: ExplicitGradients(grad.sum(dim=1)))
    return states, states[:, -1], last


class Steps(torch.autograd.Function):
    """The steps of an LSTM layer in one direction, given what the input contributes to the gates.

    `torch.lstm` does not give gradients of gates, unless the identity is its input weight, which
    takes more time than all the rest.
    """

    @staticmethod
    def forward(
        context: Any, gates: Tensor, h: Tensor, c: Tensor, across: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run them one after another.

        Args:
            context: keeps what the backward pass needs.
            gates: i, f, g and o before the activations and without U h, shape (b, T, 4 · width).
            h, c: before the first step, shape (b, width).
            across: U, shape (4 · width, width).

        Returns:
            h after each step, shape (b, T, width), and c after the last one.
        """
        first, width = c, h.shape[1]
        gates = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        hs, cs, tanhs = (gates.new_empty(*gates.shape[:2], width) for _ in range(3))
        i_and_f, g, o = gates.tensor_split([2 * width, 3 * width], dim=2)
        of_steps = (x.unbind() for x in (gates, i_and_f, g, o, hs, cs, tanhs))
        for gate, inner, proposed, outer, new_h, new_c, tanh in zip(*of_steps, strict=True):
            gate.addmm_(h, across.mT)
            i, f = inner.sigmoid_().chunk(2, dim=1)
            c = torch.mul(f, c, out=new_c).addcmul_(i, proposed.tanh_())
            h = torch.mul(outer.sigmoid_(), torch.tanh(c, out=tanh), out=new_h)
        context.save_for_backward(gates, across, first, cs, tanhs)
        return hs.transpose(0, 1), c

    @staticmethod
    @once_differentiable
    def backward(
        context: Any, of_states: Tensor, of_last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of the gates and of the first h and c."""
        gates, across, first, cs, tanhs = context.saved_tensors
        i, f, g, o = gates.chunk(4, dim=2)
        past = torch.cat([first.unsqueeze(0), cs[:-1]])
        by_c = torch.stack([g * i * (1 - i), past * f * (1 - f), i * (1 - g.square())], dim=2)
        c_by_h, o_by_h = o * (1 - tanhs.square()), tanhs * o * (1 - o)
        of_gates = torch.empty_like(gates)
        of_inner, of_o = of_gates.tensor_split([3 * first.shape[1]], dim=2)
        of_h, of_c = torch.zeros_like(first), of_last
        for t in reversed(range(len(gates))):
            of_h = of_h + of_states[:, t]
            of_c = torch.addcmul(of_c, of_h, c_by_h[t])
            torch.mul(by_c[t], of_c.unsqueeze(1), out=of_inner[t].view(len(first), 3, -1))
            torch.mul(of_h, o_by_h[t], out=of_o[t])
            of_h, of_c = of_gates[t] @ across, of_c * f[t]
        return of_gates.transpose(0, 1).contiguous(), of_h, of_c, None
