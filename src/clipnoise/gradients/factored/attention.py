"""Multi-head attention as `nn.MultiheadAttention` calls it: linear layers around a product."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from clipnoise.gradients.attention import write_out_attention
from clipnoise.gradients.factored.linear import record_linear
from clipnoise.gradients.factored.recording import Recording


def record_attention(
    recording: Recording, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Run `multi_head_attention_forward` and record its linear layers."""
    with recording.dropout:
        linear = partial(recording.layer, record_linear)
        return write_out_attention(linear, recording.own, *arguments, **options)
