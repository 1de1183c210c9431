"""Recurrent layers: their gates are linear in the input and in the previous state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, linear

from clipnoise.gradients.apart import UnsupportedError
from clipnoise.gradients.factored.linear import Outer, record_linear
from clipnoise.gradients.factored.recording import Recording, Rule
from clipnoise.gradients.factored.uses import ExplicitGradients

Step = Callable[[Tensor, Tensor, Any], Any]


def rules() -> dict[Any, Rule]:
    """Return the rules of recurrent layers, keyed by the torch function that each replaces."""
    layers: dict[Any, Rule] = {
        torch.lstm: _lstm_layer,
        torch.gru: partial(_layer, _gru_step),
        torch.rnn_tanh: partial(_layer, _tanh_step),
        torch.rnn_relu: partial(_layer, _relu_step),
    }
    cells: dict[Any, Step] = {
        torch.lstm_cell: _lstm_step,
        torch.gru_cell: _gru_step,
        torch.rnn_tanh_cell: _tanh_step,
        torch.rnn_relu_cell: _relu_step,
    }
    return {
        **{function: partial(_record, layer) for function, layer in layers.items()},
        **{function: partial(_record_cell, step) for function, step in cells.items()},
    }


def _record_cell(
    step: Step,
    recording: Recording,
    input: Tensor,
    state: Any,
    inward: Tensor,
    across: Tensor,
    of_input: Tensor | None = None,
    of_state: Tensor | None = None,
) -> Any:
    """Run one step and record it as two linear layers, of the input and of the state."""
    single = isinstance(state, Tensor)
    parts = _parts(recording, state)
    gates = recording.layer(record_linear, input, inward, of_input)
    own = recording.layer(record_linear, parts[0], across, of_state)
    return step(gates, own, parts[0] if single else parts)


def _record(
    run_layer: Rule,
    recording: Recording,
    input: Tensor,
    state: Tensor | Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    drop: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run a recurrent network, one layer and direction at a time, and record the factors of each.

    Args:
        run_layer: runs one layer in one direction, from its input, its state and its parameters; it
            returns the states after each step, (b, T, width), and the state after the last one.
        recording: of this pass.
        input: shape (b, T, p), or (T, b, p).
        state: before the first step, (layers · directions, b, width); of an LSTM, h and c.
        parameters: for each layer and direction (W, U), with biases (W, U, w, u).
        has_biases: whether the layers have biases.
        num_layers: how many layers are stacked.
        drop: dropout rate between layers.
        train: whether dropout is applied.
        bidirectional: whether each layer also runs from the last step to the first.
        batch_first: whether the first axis of the input is that of the examples.

    Returns:
        The states h of the last layer, and the state (of an LSTM, h and c) after the last step.
    """
    if not isinstance(has_biases, bool):  # sizes of batches take a place before it
        raise UnsupportedError("a recurrent layer on packed sequences")
    start = _parts(recording, state)
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
            inputs = (rows.flip(flip), *(part[number] for part in start))
            states, *end = recording.layer(run_layer, *inputs, weights, inputs=len(inputs))
            outputs.append(states.flip(flip))
            ends.append(end)
        rows = torch.cat(outputs, dim=2) if directions > 1 else outputs[0]
    states = rows if batch_first else rows.transpose(0, 1)
    return states, *(torch.stack(part) for part in zip(*ends, strict=True))


def _parts(recording: Recording, state: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return h, and of an LSTM c as well."""
    return [recording.own(part) for part in ((state,) if isinstance(state, Tensor) else state)]


def _layer(
    step: Step, recording: Recording, rows: Tensor, h: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run one layer of an RNN or a GRU in one direction.

    The contributions of the input and of the previous state to the gates, W x + w and U h + u, have
    gradients of their own. Those of the second are asked for by what is added to U h in each step.

    Args:
        step: returns the next state from both contributions and the previous state.
        recording: of this pass.
        rows: shape (b, T, p).
        h: before the first step, shape (b, width).
        parameters: (W, U), with biases (W, U, w, u).
    """
    inward, across, *biases = parameters
    of_input, of_state = biases or (None, None)
    recording.examples_of(rows, single=True)
    gates = linear(rows, recording.plain(inward, rows), recording.plain(of_input, rows))
    added = across.new_zeros(gates.shape[2]) if of_state is None else recording.plain(of_state)
    own = added.detach().expand(gates.shape)
    own.requires_grad_(recording.trains(across) or recording.trains(of_state))
    taps = recording.tap(gates), recording.tap(own)
    first, states = h, []
    with torch.autocast(gates.device.type, enabled=False):
        h, weight = h.to(across.dtype), recording.plain(across).mT
        for gate, more in zip(gates.to(across.dtype).unbind(1), own.unbind(1), strict=True):
            h = step(gate, torch.addmm(more, h, weight), h)
            states.append(h)
    after = torch.stack(states, dim=1)
    before = torch.cat([first.unsqueeze(1), after[:, :-1]], dim=1).detach()
    inputs = recording.hold(rows)
    recording.use(inward, taps[0], lambda grad: Outer(grad, inputs))
    recording.use(across, taps[1], lambda grad: Outer(grad, before))
    for bias, tap in zip(biases, taps, strict=False):
        recording.use(bias, tap, lambda grad: ExplicitGradients(grad.sum(dim=1)))
    return after, h


def _tanh_step(gates: Tensor, own: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(gates + own)


def _relu_step(gates: Tensor, own: Tensor, h: Tensor) -> Tensor:
    return torch.relu(gates + own)


def _gru_step(gates: Tensor, own: Tensor, h: Tensor) -> Tensor:
    """Return the next state; own holds what the state contributes to the gates r, z and n."""
    (r, z, n), (own_r, own_z, own_n) = gates.chunk(3, dim=1), own.chunk(3, dim=1)
    n = torch.tanh(n + torch.sigmoid(r + own_r) * own_n)
    return n + torch.sigmoid(z + own_z) * (h - n)


def _lstm_step(gates: Tensor, own: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the next h and c from the gates i, f, g and o."""
    i, f, g, o = (gates + own).chunk(4, dim=1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _lstm_layer(
    recording: Recording, rows: Tensor, h: Tensor, c: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer of an LSTM in one direction.

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
