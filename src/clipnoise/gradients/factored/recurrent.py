"""LSTM layers: their gates are linear in the input and in the previous state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear

from clipnoise.gradients.factored.linear import Outer
from clipnoise.gradients.factored.recording import Recording, UnsupportedError
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
    ends: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        if layer and train and drop:
            with recording.dropout:
                rows = dropout(rows, drop)
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = parameters[number * each : (number + 1) * each]
            before = state[0][number], state[1][number]
            flip = [1] if direction else []
            states, end = _layer(recording, rows.flip(flip), before, weights)
            outputs.append(states.flip(flip))
            ends.append(end)
        rows = torch.cat(outputs, dim=2) if directions > 1 else outputs[0]
    states = rows if batch_first else rows.transpose(0, 1)
    h, c = (torch.stack(part) for part in zip(*ends, strict=True))
    return states, h, c


def _layer(
    recording: Recording,
    rows: Tensor,
    before: tuple[Tensor, Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run one layer in one direction: rows (b, T, p) → states (b, T, width), and the last h and c.

    The input's contribution to the gates is computed first, and the layer then runs on it with the
    identity in place of W. The gradient of the layer's input is then the gradient of the gates.
    """
    inward, across, *biases = parameters
    recording.examples_of(rows, rows=1)
    gates = linear(rows, *(recording.plain(one, rows) for one in (inward, *biases[:1])))
    if not gates.requires_grad:  # only what the layer makes of its own state is trained
        gates.requires_grad_()
    tap = recording.tap(gates)
    flat = [torch.eye(len(inward)).to(inward.detach()), recording.plain(across)]
    if biases:
        flat += [torch.zeros_like(biases[0]), recording.plain(biases[1])]
    start = [part.unsqueeze(0) for part in before]
    states, h, c = torch.lstm(gates, start, flat, bool(biases), 1, 0.0, False, False, True)
    inputs = recording.hold(rows)
    past = torch.cat([before[0].unsqueeze(1), states[:, :-1]], dim=1).detach()
    recording.use(inward, tap, lambda grad: Outer(grad, inputs))
    recording.use(across, tap, lambda grad: Outer(grad, past))
    for bias in biases:
        recording.use(bias, tap, lambda grad: ExplicitGradients(grad.sum(dim=1)))
    return states, (h.squeeze(0), c.squeeze(0))
