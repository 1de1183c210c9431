"""Rows stored in a file or sparse equal the rows of the dense tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from clipnoise.data.base import Examples
from clipnoise.data.rows import RaggedRows, Rows, SparseRows, StoredRows

N, WIDTH = 12, 7
DENSE = np.random.default_rng(0).poisson(0.4, (N, WIDTH)).astype("float32")
CHOSEN = torch.tensor([7, 2, 9, 2, 0])


def stored(folder: Path) -> tuple[Rows, torch.Tensor]:
    np.save(folder / "a.npy", (10 * DENSE).astype("uint8"))
    array = np.load(folder / "a.npy", mmap_mode="r")
    return StoredRows(array, CHOSEN, lambda taken: taken / 10), torch.from_numpy(DENSE)[CHOSEN]


def sparse(folder: Path) -> tuple[Rows, torch.Tensor]:
    matrix = csr_array(DENSE)
    rows = SparseRows(
        matrix.indptr.astype("int64"),
        matrix.indices.astype("uint16"),
        matrix.data.astype("uint8"),
        WIDTH,
        CHOSEN,
    )
    return rows, torch.from_numpy(DENSE)[CHOSEN]


@pytest.mark.parametrize("make", [stored, sparse])
@pytest.mark.parametrize(
    "asked",
    [
        slice(None),
        slice(1, 3),
        slice(0),
        torch.tensor([4, 4, 0]),
        torch.tensor([], dtype=torch.int64),
    ],
    ids=str,
)
def test_taken_rows_are_those_of_the_dense_tensor(
    make: object, asked: slice | torch.Tensor, tmp_path: Path
) -> None:
    rows, dense = make(tmp_path)  # type: ignore[operator]
    assert len(rows) == len(dense)
    assert torch.equal(rows[asked], dense[asked])
    assert torch.equal(rows.to("cpu")[asked], dense[asked])


@pytest.mark.parametrize("make", [stored, sparse])
def test_what_is_taken_is_a_copy(make: object, tmp_path: Path) -> None:
    rows, dense = make(tmp_path)  # type: ignore[operator]
    rows[slice(None)].zero_()
    assert torch.equal(rows[slice(None)], dense)


def test_examples_of_rows_become_dense_tensors(tmp_path: Path) -> None:
    rows, dense = sparse(tmp_path)
    examples = Examples(rows, torch.arange(len(CHOSEN)))
    inputs, targets = examples.take(torch.tensor([1, 3]))
    assert torch.equal(inputs, dense[[1, 3]])
    assert targets.tolist() == [1, 3]
    assert torch.equal(examples.dense().inputs, dense)


WORDS = [[5, 6], [7] * 40, [8], [9] * 70]


def ragged(chosen: list[int], length: int = 64) -> RaggedRows:
    starts = np.cumsum([0, *map(len, WORDS)])
    values = np.concatenate([np.array(row, dtype="uint16") for row in WORDS])
    return RaggedRows(starts, values, torch.tensor(chosen), length)


def test_ragged_rows_are_padded_to_a_bucket_and_never_beyond_the_length() -> None:
    rows = ragged([2, 0, 1, 3])
    assert rows[slice(0, 2)].shape == (2, 32)
    assert rows[torch.tensor([0, 2])].shape == (2, 64)
    assert rows[torch.tensor([3])].shape == (1, 64)
    assert ragged([1], length=35)[slice(None)].shape == (1, 35)
    assert rows[slice(0)].shape == (0, 32)


def test_ragged_rows_hold_their_tokens_and_then_padding() -> None:
    taken = ragged([1, 0])[slice(None)]
    assert taken.dtype == torch.int64
    assert taken[0].tolist() == [7] * 40 + [0] * 24
    assert taken[1].tolist() == [5, 6] + [0] * 62
