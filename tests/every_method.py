"""One instance of every registered method, and what a step of it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from clipnoise.core.clip_rules.smooth import PSAC, AutomaticClip
from clipnoise.core.method import Method
from clipnoise.core.state import Public
from clipnoise.methods.base import example, example_settings, methods

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

METHODS = list(methods())
# Settings under which a method's query or clipping is another than by default.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("sgd", {"momentum": 0.9}),
    ("dp-sgdm", {"schedule": "adam-equivalent"}),
    ("dp-adam", {"clip_rule": AutomaticClip()}),
    ("stp-adam", {"clip_rule": PSAC(gamma=0.1)}),
    ("dp-sgd-quantile", {"clip_rule": AutomaticClip(), "count_share": 0.5}),
    ("dp-sgd-slaclip", {"clip_rule": AutomaticClip(), "slots": 3}),
    ("dp-adambc", {"gamma_schedule": "bound"}),
    ("ime-adam", {"for_free": True}),
    ("ime-adagrad", {"for_free": True}),
    ("jme-adam", {"clip_norm": 0.1}),
    ("jme-adam", {"accounting": "as-published"}),
    ("dp-pmlf", {"history": 4, "beta": 0.9, "filter_b": (0.15, -0.05)}),
    ("dp-pmlf-released", {"history": 3, "beta": 0.9, "filter_b": (0.15, -0.05)}),
    ("dp-pmlf-wo-lf", {"history": 4, "beta": 0.9}),
    ("innerouter", {"history": 4, "beta": 0.9}),
    ("lp-dpadam", {"noise_correction": "exact", "filter_b": (0.15, -0.05)}),
    ("dp-pmlf-adam", {"noise_correction": "stationary"}),
    ("disk-adam", {"noise_correction": "exact"}),
    ("fiber", {"noise_correction": "exact"}),
    ("tp-topk", {"warmup": 0.5, "active": 0.5}),
    ("dp-fedavg", {"noise_placement": "per-user"}),
    ("dp-fedadam", {"bias_correction": False}),
]


# One method of each family, at its default settings, stands for the family in `make test`.
FAMILIES = (
    "sgd",
    "dp-adam",
    "stp-adam",
    "dp-pmlf",
    "jme-adam",
    "disk",
    "dp-sgd-quantile",
    "dp-fedavg",
    "dp-prototypes",
)


def one_per_family(cases: Iterable[tuple[str, dict[str, Any]]]) -> list[ParameterSet]:
    """Return the same cases; all but those that stand for a family are marked as long."""
    return [
        pytest.param(
            name, options, marks=[pytest.mark.long] * (bool(options) or name not in FAMILIES)
        )
        for name, options in cases
    ]


def required(name: str) -> dict[str, Any]:
    """Return a value for each hyper-parameter that has no default."""
    return example_settings(methods()[name])


def recorded(name: str) -> dict[str, Any]:
    """Return the same for a recorded stream, which has no layers that could be clipped."""
    whole = {"clip_rule": {"per": "example"}} if name == "dp-muon" else {}
    return {**required(name), **whole}


def build(name: str, **options: Any) -> Method:
    return example(methods()[name], **options)


def public(
    method: Method,
    d: int,
    *,
    sigma: float = 1.0,
    expected_batch_size: float = 4.0,
    total_steps: int = 10,
    seed: int = 0,
) -> Public:
    """Return the public values of one step, with what the method asks for."""
    draw = torch.Generator().manual_seed(seed)

    def vector() -> Tensor:
        return torch.randn(d, generator=draw, dtype=torch.float64)

    return Public(
        noise_multiplier=sigma,
        expected_batch_size=expected_batch_size,
        total_steps=total_steps,
        gradient=vector() if method.uses_public_gradient else None,
        side_information=vector().abs() + 0.1 if method.uses_side_information else None,
    )
