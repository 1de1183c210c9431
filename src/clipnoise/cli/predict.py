"""Predictions of a published model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import csv_text, write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Dataset
    from clipnoise.data.rows import Rows
    from clipnoise.data.several import Several

BATCH = 256


@options.command()
def predict(
    folder: Annotated[Path, options.ARGUMENT],
    data: Annotated[Path, options.ARGUMENT],
    out: Annotated[Path | None, "Write the CSV table to this file, not to the terminal."] = None,
    weights: options.Weights = options.WEIGHTS,
) -> None:
    """Predict by the published model in FOLDER for each row of the file DATA.

    DATA is like the training file of an `own` dataset; a column to predict is not needed. For any
    other dataset it is a NumPy archive or a Parquet file with an array `inputs`, as the model sees
    them. The table has a row for each: its number, what is predicted, and how probable that is.
    """
    from clipnoise.run.published import read_published

    network, spec = read_published(folder, weights)
    rows = _inputs(spec.dataset, data, weights)
    predicted = _predictions(network, spec.dataset, rows)
    table = csv_text(_columns(spec.dataset), predicted)
    if out is None:
        sys.stdout.write(table)
    else:
        write_atomically(out, table)
        print(out)


def _inputs(dataset: Dataset, path: Path, weights: Path) -> Rows | Several | Tensor:
    """Return the inputs of a file, of shape (n, …) when rows are taken.

    Raises:
        UserError: the file is damaged, or its inputs have another shape than the model takes.
    """
    import torch

    from clipnoise.data.own import Own
    from clipnoise.data.own_arrays import finite, numbers_in
    from clipnoise.data.tables import FORMS, read_columns

    options.require_form(path, FORMS)
    if isinstance(dataset, Own):
        return dataset.inputs_in(path, weights)
    signature = dataset.signature
    if signature.parts:
        raise UserError(
            f"{path}: the model takes several inputs, {signature}; a file of such inputs is read "
            "for `own` datasets only. Call the model in Python."
        )
    try:
        values = numbers_in(read_columns(path, ("inputs",))["inputs"], "inputs")
        found = torch.as_tensor(values if signature.kind == "tokens" else finite("inputs", values))
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    if tuple(found.shape[1:]) != signature.shape:
        raise UserError(
            f"{path}: inputs of shape {tuple(found.shape[1:])}; the model takes {signature}."
        )
    return found.long() if signature.kind == "tokens" else found.float()


def _columns(dataset: Dataset) -> tuple[str, ...]:
    signature = dataset.signature
    if signature.task_name == "classification":
        return ("row", "predicted", "probability")
    return ("row", *(f"predicted_{number}" for number in range(signature.outputs)))


def _predictions(
    network: nn.Module, dataset: Dataset, rows: Rows | Several | Tensor
) -> Iterator[dict[str, object]]:
    """Yield a row of the table for each input: a class and its probability, or numbers."""
    import torch

    from clipnoise.data.several import call

    signature = dataset.signature
    names = getattr(dataset, "classes", ()) or range(signature.outputs)
    columns = _columns(dataset)
    for start in range(0, len(rows), BATCH):
        with torch.no_grad():
            outputs = call(network, rows[start : start + BATCH])
        if signature.task_name == "classification":
            found = outputs[:, : signature.outputs].softmax(dim=-1).max(dim=-1)
            pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
            values = [(names[place], f"{probability:.6f}") for place, probability in pairs]
        else:
            tags = signature.task_name == "multi-label"
            values = [tuple(row) for row in (outputs.sigmoid() if tags else outputs).tolist()]
        for row, value in enumerate(values, start):
            yield dict(zip(columns, (row, *value), strict=True))
