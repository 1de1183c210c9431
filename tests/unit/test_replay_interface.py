"""The replay as an interface: shapes, types, copies, and errors that name what is wrong."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_method import METHODS, build, recorded

from clipnoise import replay
from clipnoise.cli import main
from clipnoise.errors import UserError

T, K, B, D = 4, 3, 5, 2
SGD: dict[str, Any] = {
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "expected_batch_size": 5,
}


def arrays(method: str = "dp-sgd") -> dict[str, Any]:
    draw = np.random.default_rng(0)
    optimizer = build(method)
    width = 1 if optimizer.query.of.losses else D
    stream = {
        "initial": draw.normal(size=D),
        "per_example_gradients": draw.normal(size=(T, K, B, width)),
        "noise": draw.normal(
            size=(T, max(1, optimizer.query.draws), len(optimizer.query.noise_like(torch.zeros(D))))
        ),
    }
    if optimizer.uses_public_gradient:
        stream["public_gradients"] = draw.normal(size=(T, D))
    if optimizer.uses_side_information:
        stream["side_information"] = np.ones(D)
    return stream


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_in_float64_and_leaves_its_inputs_alone(method: str) -> None:
    stream = arrays(method)
    copies = {name: value.copy() for name, value in stream.items()}
    h = {**SGD, **recorded(method)}
    if "clip_norms" in h or method in ("dp-prototypes", "dp-objective-perturbation"):
        h.pop("learning_rate")
    out = replay(method, h, **stream)
    assert isinstance(out, np.ndarray)
    assert out.dtype == np.float64
    assert out.shape == (T + 1, D)
    np.testing.assert_array_equal(out[0], stream["initial"])
    for name, value in stream.items():
        np.testing.assert_array_equal(value, copies[name])
    np.testing.assert_array_equal(replay(method, h, **stream), out)


def test_the_worked_example_is_right() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(replay, "replay", globs={})
    outcome = doctest.DocTestRunner().run(example)
    assert outcome.attempted == 4
    assert outcome.failed == 0


@pytest.mark.parametrize("convert", [np.ndarray.tolist, np.float64, torch.from_numpy])
def test_lists_arrays_and_tensors_are_taken(convert: Any) -> None:
    stream = arrays()
    expected = replay("dp-sgd", SGD, **stream)
    converted = {name: convert(value) for name, value in stream.items()}
    np.testing.assert_array_equal(replay("dp-sgd", SGD, **converted), expected)


def test_numpy_numbers_and_arrays_are_taken_as_hyperparameters() -> None:
    h = SGD | {"filter_a": [-0.9], "filter_b": [0.15, -0.05]}
    as_numpy = {name: np.array(value) for name, value in h.items()}
    as_numpy["learning_rate"] = np.float32(0.5)
    np.testing.assert_array_equal(
        replay("lp-dpsgd", as_numpy, **arrays()),
        replay("lp-dpsgd", h | {"learning_rate": 0.5}, **arrays()),
    )


def test_shapes_without_the_axes_of_one_are_the_same() -> None:
    stream = arrays()
    stream["per_example_gradients"] = stream["per_example_gradients"][:, 0]
    stream["noise"] = stream["noise"][:, 0]
    np.testing.assert_array_equal(
        replay("dp-sgd", SGD, **stream), replay("dp-sgd", SGD, **arrays())
    )


@pytest.mark.parametrize("method", ["sgd", "adam", "rmsprop", "adas", "adas-side"])
def test_a_method_without_privacy_ignores_clip_norm_and_noise(method: str) -> None:
    stream = arrays(method)
    plain = replay(method, {"learning_rate": 0.1}, **stream)
    given = replay(method, SGD, **(stream | {"noise": stream["noise"] + 1.0}))
    np.testing.assert_array_equal(given, plain)


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("dp-sdg", {}, "unknown method 'dp-sdg'. Did you mean 'dp-sgd'?"),
        ("dp-sgd", {"learning_rat": 1}, "unknown hyper-parameter 'learning_rat'. Did you mean"),
        ("dp-sgd", {"momentum": 0.9}, "unknown hyper-parameter 'momentum'"),
        ("dp-sgd", {"learning_rate": -1}, "dp-sgd.learning_rate: input should be greater than 0"),
        ("dp-sgd", {"noise_multiplier": -1}, "noise_multiplier: input should be greater than or"),
        ("dp-sgd", {"noise_multiplier": "big"}, "noise_multiplier: input should be a number"),
        ("dp-sgd", {"expected_batch_size": 0}, "expected_batch_size: input should be greater than"),
        ("dp-adam", {"betas": [0.9]}, "dp-adam.betas.1: required, but not given"),
        ("dp-adam", {"betas": [0.9, 1.0]}, "dp-adam.betas.1: input should be less than 1"),
    ],
)
def test_a_wrong_name_or_value_is_named(method: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        replay(method, SGD | change, **arrays())
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["learning_rate", "clip_norm", "noise_multiplier"])
def test_what_a_private_method_needs_must_be_given(name: str) -> None:
    h = {key: value for key, value in SGD.items() if key != name}
    with pytest.raises(UserError, match=name):
        replay("dp-sgd", h, **arrays())


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("dp-sgd", {"initial": np.zeros(3)}, r"initial: expected shape \(2,\), got \(3,\)"),
        ("dp-sgd", {"initial": np.zeros((2, 1))}, "initial: expected 1 dimensions"),
        ("dp-sgd", {"noise": np.zeros((T, D + 1))}, r"noise: expected shape \(4, 1, 2\)"),
        ("dp-sgd", {"noise": [[1.0], [1.0, 2.0]]}, "noise: not an array of numbers"),
        ("dp-sgd", {"per_example_gradients": np.zeros((T, D))}, "expected 3 or 4 dimensions"),
        ("dp-pmlf", {"per_example_gradients": np.zeros((T, B, D))}, "reads 2 iterates per step"),
        ("dp-r-pub", {}, "public_gradients: dp-r-pub needs them"),
        ("dp-r-pub", {"public_gradients": np.zeros((1, D))}, "public_gradients: expected shape"),
        ("adadps-side", {}, "side_information: adadps-side needs it"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    method: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        replay(method, SGD, **(arrays() | change))


def test_the_adam_equivalent_schedule_needs_noise() -> None:
    h = SGD | {"schedule": "adam-equivalent", "noise_multiplier": 0}
    with pytest.raises(UserError, match="noise multiplier must not be 0"):
        replay("dp-sgdm", h, **arrays())


@pytest.mark.parametrize("method", ["dp-sgd", "ime-adam", "adadps-side", "adadps-rmsprop"])
def test_the_command_gives_what_the_function_gives(method: str, tmp_path: Path) -> None:
    stream = arrays(method)
    source, target = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(source, **stream)
    words = ["replay", method, str(source), str(target), "--hyperparameters", json.dumps(SGD)]
    assert main(words) == 0
    np.testing.assert_array_equal(np.load(target)["iterates"], replay(method, SGD, **stream))


def test_the_command_names_an_array_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.npz"
    np.savez(source, **arrays(), publik_gradients=np.zeros((T, D)))
    words = ["replay", "dp-sgd", str(source), str(tmp_path / "out.npz")]
    assert main([*words, "--hyperparameters", json.dumps(SGD)]) == 2
    assert "Did you mean 'public_gradients'?" in capsys.readouterr().err
