"""Properties that hold for any stream: reductions, finiteness, equivariance."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from every_method import METHODS, VARIANTS, one_per_family, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clipnoise import replay
from clipnoise.fields import parse
from clipnoise.methods.base import methods

Array = NDArray[np.float64]
STREAMS = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(0, 4), st.integers(1, 4)
)
RUN: dict[str, Any] = {"noise_multiplier": 0.8, "expected_batch_size": 3.0}
SGD: dict[str, Any] = RUN | {"learning_rate": 0.3, "clip_norm": 1.0}


def run(
    method: str,
    h: dict[str, Any],
    shape: tuple[int, int, int, int],
    *,
    scale: float = 1.0,
    public: Array | None = None,
    public_scale: float = 1.0,
    side: Array | None = None,
) -> Array:
    """Replay a stream drawn from (seed, T, B, d), four iterates deep."""
    seed, T, B, d = shape
    draw = np.random.default_rng(seed)
    kind = methods()[method]
    own = {field.name for field in fields(kind)}
    optimizer = parse(kind, {name: h[name] for name in h if name in own}, key=method)
    width = 1 if optimizer.query.of.losses else d
    initial, gradients = draw.normal(size=d), scale * draw.normal(size=(T, 4, B, width))
    drawn = len(optimizer.query.noise_like(torch.zeros(d)))
    noise = draw.normal(size=(T, max(1, optimizer.query.draws), drawn))
    if public is None and optimizer.uses_public_gradient:
        public = public_scale * draw.normal(size=(T, d))
    if side is None and optimizer.uses_side_information:
        side = np.exp(draw.normal(size=d))
    return replay(method, h, initial, gradients, noise, public, side_information=side)


@pytest.mark.parametrize(
    ("method", "off"),
    [
        ("dp-sgdm", {"momentum": 0.0}),
        ("dp-sgd-warm", {}),
        ("lp-dpsgd", {"filter_a": [], "filter_b": [1.0]}),
        ("dp-pmlf-wo-pm", {"filter_a": [], "filter_b": [1.0]}),
        ("dp-pmlf", {"filter_a": [], "filter_b": [1.0], "history": 1}),
        ("dp-pmlf", {"filter_a": [], "filter_b": [1.0], "history": 3, "beta": 0.0}),
        ("dp-pmlf-wo-lf", {"history": 1}),
        ("dp-pmlf-wo-lf", {"history": 4, "beta": 0.0}),
        ("innerouter", {"history": 1, "momentum": 0.0}),
    ],
)
@settings(max_examples=25)
@given(shape=STREAMS)
def test_without_its_extra_a_method_is_dp_sgd(
    method: str, off: dict[str, Any], shape: tuple[int, int, int, int]
) -> None:
    np.testing.assert_allclose(
        run(method, SGD | off, shape), run("dp-sgd", SGD, shape), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("method", ["adadps-rmsprop", "adadps-adagrad", "dp-r-pub", "adadps-side"])
@settings(max_examples=25)
@given(shape=STREAMS)
def test_at_scale_one_a_method_with_public_knowledge_is_dp_sgd(
    method: str, shape: tuple[int, int, int, int]
) -> None:
    _, T, _, d = shape
    public = np.zeros((T, d)) if method != "adadps-side" else None
    side = np.zeros(d) if method == "adadps-side" else None
    out = run(method, SGD | {"gamma": 1.0}, shape, public=public, side=side)
    np.testing.assert_allclose(out, run("dp-sgd", SGD, shape), rtol=1e-12, atol=1e-14)


@settings(max_examples=25)
@given(shape=STREAMS)
def test_a_delayed_preconditioner_that_never_comes_is_dp_sgd(
    shape: tuple[int, int, int, int],
) -> None:
    h = RUN | {"phase_lengths": (9, 1), "learning_rates": (0.3, 1.0), "clip_norms": (1.0, 1.0)}
    np.testing.assert_allclose(
        run("dp2-rmsprop", h, shape), run("dp-sgd", SGD, shape), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize(
    ("oracle", "sibling"),
    [
        ("dp-adam-noiseless", "dp-adam"),
        ("clipped-adam-biased", "dp-adam"),
        ("stp-noiseless", "stp-adam"),
    ],
)
@settings(max_examples=25)
@given(shape=STREAMS)
def test_without_noise_an_oracle_is_its_private_sibling(
    oracle: str, sibling: str, shape: tuple[int, int, int, int]
) -> None:
    h = SGD | {"noise_multiplier": 0.0, "gamma": 1e-3}
    own = h | ({"phi": 0.0} if oracle == "clipped-adam-biased" else {})
    np.testing.assert_array_equal(run(oracle, own, shape), run(sibling, h, shape))


@pytest.mark.parametrize("method", ["ime-adam", "jme-adam"])
@settings(max_examples=25)
@given(shape=STREAMS)
def test_without_noise_and_inside_the_ball_released_moments_are_those_of_dp_adam(
    method: str, shape: tuple[int, int, int, int]
) -> None:
    h = SGD | {"noise_multiplier": 0.0, "gamma": 1e-3, "expected_batch_size": 4.0}
    np.testing.assert_allclose(
        run(method, h, shape), run("dp-adam", h, shape), rtol=1e-9, atol=1e-12
    )


@settings(max_examples=25)
@given(shape=STREAMS)
def test_without_clipping_and_noise_dp_sgd_is_sgd(shape: tuple[int, int, int, int]) -> None:
    h = SGD | {"noise_multiplier": 0.0, "clip_norm": 1e6}
    np.testing.assert_allclose(run("dp-sgd", h, shape), run("sgd", h, shape), rtol=1e-12)


@settings(max_examples=25)
@given(shape=STREAMS)
def test_without_correction_and_floor_dp_adambc_is_dp_adam(
    shape: tuple[int, int, int, int],
) -> None:
    bc = run("dp-adambc", SGD | {"phi": 0.0, "gamma_prime": 1e-300}, shape)
    np.testing.assert_allclose(bc, run("dp-adam", SGD | {"gamma": 0.0}, shape), rtol=1e-10)


@pytest.mark.parametrize(
    "method",
    ["dp-sgd", "dp-sgdm", "lp-dpsgd", "dp-pmlf", "dp-pmlf-wo-lf", "innerouter", "dp-sgd-warm"],
)
@settings(max_examples=20)
@given(shape=STREAMS, power=st.integers(-8, 8))
def test_a_linear_method_moves_in_proportion_to_gradients_and_clip_norm(
    method: str, shape: tuple[int, int, int, int], power: int
) -> None:
    scale = 2.0**power
    one = run(method, SGD, shape)
    other = run(method, SGD | {"clip_norm": scale}, shape, scale=scale)
    np.testing.assert_allclose(other - one[0], scale * (one - one[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("dp-adam", {"clip_norm": 1, "gamma": 1}),
        ("dp-adambc", {"clip_norm": 1, "gamma_prime": 2}),
        ("dp-rmsprop", {"clip_norm": 1, "gamma": 1}),
        ("dp-adagrad", {"clip_norm": 1}),
        ("ime-adam", {"clip_norm": 1, "gamma": 1}),
        ("dp-adam-noiseless", {"clip_norm": 1, "gamma": 1}),
        ("adam", {"gamma": 1}),
        ("stp-adam", {"gamma": 1, "gamma_scale": 1}),
        ("stp-noiseless", {"gamma": 1, "gamma_scale": 1}),
        ("adadps-rmsprop", {"gamma": 1}),
        ("adadps-adagrad", {"gamma": 1}),
        ("adadps-adam", {"gamma": 1}),
        ("adadps-ideal", {"gamma": 1}),
        ("adas", {"gamma": 1}),
        ("dp-adam-pub", {"clip_norm": 1, "gamma": 1}),
        ("dp-r-pub", {"clip_norm": 1, "gamma": 1}),
    ],
)
@settings(max_examples=20)
@given(shape=STREAMS, power=st.integers(-8, 8))
def test_an_adaptive_method_does_not_see_the_units_of_the_gradient(
    method: str, names: dict[str, int], shape: tuple[int, int, int, int], power: int
) -> None:
    scale = 2.0**power
    base = {"clip_norm": 1.0, "gamma": 1e-2, "gamma_prime": 1e-3, "gamma_scale": 1e-2}
    h = RUN | {"learning_rate": 0.3} | {name: base[name] for name in names}
    h = {**recorded(method), **h}
    changed = h | {name: h[name] * scale**unit for name, unit in names.items()}
    np.testing.assert_allclose(
        run(method, changed, shape, scale=scale, public_scale=scale),
        run(method, h, shape),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("examples", [0, 3])
@pytest.mark.parametrize(("method", "options"), one_per_family(VARIANTS))
def test_zero_gradients_and_empty_batches_stay_finite(
    method: str, options: dict[str, Any], examples: int, sigma: float
) -> None:
    if options.get("schedule") == "adam-equivalent" and sigma == 0:
        return
    h = {**recorded(method), **options, "noise_multiplier": sigma, "expected_batch_size": 3.0}
    out = run(method, h, (0, 6, examples, 3), scale=0.0)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("method", METHODS)
def test_without_steps_nothing_moves(method: str) -> None:
    out = run(method, {**recorded(method), **RUN}, (0, 0, 3, 2))
    assert out.shape == (1, 2)
