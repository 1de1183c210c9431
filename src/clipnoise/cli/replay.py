"""Run a recorded stream of gradients and noise through a method, from an .npz to an .npz.

The input holds the arrays initial, per_example_gradients, noise and, where the method wants them,
public_gradients, side_information and warm_gradients, in the shapes that clipnoise.replay
documents. The output holds `iterates`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clipnoise.errors import UserError, unknown

REQUIRED = ("initial", "per_example_gradients", "noise")
OPTIONAL = ("public_gradients", "side_information", "warm_gradients")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="method id, e.g. dp-adambc")
    parser.add_argument("input", type=Path, help=".npz with the recorded stream")
    parser.add_argument("output", type=Path, help=".npz to write")
    parser.add_argument(
        "--hyperparameters", required=True, help="JSON object by the names of the run spec"
    )


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from clipnoise.run.replay import replay

    try:
        hyperparameters = json.loads(arguments.hyperparameters)
    except json.JSONDecodeError as error:
        raise UserError(f"--hyperparameters: not valid JSON: {error}") from None
    if not isinstance(hyperparameters, dict):
        raise UserError("--hyperparameters: expected a JSON object.")
    try:
        with np.load(arguments.input, allow_pickle=False) as stream:
            arrays = dict(stream)
    except (OSError, ValueError) as error:
        raise UserError(f"{arguments.input}: cannot be read as .npz: {error}") from None
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise UserError(f"{arguments.input}: missing arrays: {', '.join(missing)}.")
    for name in arrays:
        if name not in REQUIRED + OPTIONAL:
            raise unknown("array", name, REQUIRED + OPTIONAL, file=str(arguments.input))
    iterates = replay(arguments.method, hyperparameters, **arrays)
    np.savez(arguments.output, iterates=iterates)
    print(f"{arguments.output}: iterates of shape {iterates.shape}")
    return 0
