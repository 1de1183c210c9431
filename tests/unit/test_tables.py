"""Tables: numbers beside the ids of categories, from a file to a trained model's predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from budgets import budget

from clipnoise.audit.canaries import WithCanaries
from clipnoise.cli import main
from clipnoise.data.own import Own
from clipnoise.data.several import Several, call
from clipnoise.data.signature import Input
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.models.base import model_class
from clipnoise.run.job import run_job
from clipnoise.run.published import read_published
from clipnoise.run.results import MODEL, read_run, run_folder
from clipnoise.run.spec import RunSpec, from_mapping

COLUMNS = {
    "kind": {"categories": ["car", "home", "life"], "missing": 0},
    "region": {"categories": ["north", "south"]},
    "years": {"range": [0, 40], "missing": 10},
}
DESCRIBED: dict[str, Any] = {
    "name": "policies",
    "inputs": ["size", "kind", "region", "years"],
    "target": "renewed",
    "kind": "table",
    "shape": [3],
    "vocabulary": 6,
    "training_file": 40,
    "test_file": 8,
    "validation_examples": 5,
    "columns": COLUMNS,
}
"""years has an indicator of missing values: three numbers; kind has an id for them: six ids."""


def rows(count: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": draws.normal(size=count),
            "kind": np.array(["car", "home", "life"])[draws.integers(0, 3, count)],
            "region": np.array(["north", "south"])[draws.integers(0, 2, count)],
            "years": draws.integers(0, 40, count).astype(float),
            "renewed": draws.integers(0, 2, count),
        }
    )
    frame.loc[3, ["kind", "years"]] = None
    return frame


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "raw" / "policies"
    folder.mkdir(parents=True)
    for part, count in (("train", 40), ("test", 8)):
        rows(count, len(part)).to_csv(folder / f"{part}.csv", index=False)
    return tmp_path


def own(**changes: Any) -> Own:
    return parse(Own, {**DESCRIBED, **changes})


def test_categories_become_ids_beside_numbers(cache: Path) -> None:
    dataset = own()
    dataset.prepare(cache)
    inputs = dataset.inputs_in(cache / "raw" / "policies" / "train.csv", Path("weights"))
    assert isinstance(inputs, Several)
    found, frame = inputs[:].parts, rows(40, 5)
    assert isinstance(found, dict)
    place = {"car": 0, "home": 1, "life": 2, None: 3}
    kinds = [place[kind if isinstance(kind, str) else None] for kind in frame["kind"]]
    regions = [4 + ["north", "south"].index(region) for region in frame["region"]]
    assert found["categories"].tolist() == [list(pair) for pair in zip(kinds, regions, strict=True)]
    lacks = frame["years"].isna()
    numbers = np.column_stack([frame["size"], frame["years"].fillna(10) / 40, lacks])
    torch.testing.assert_close(found["numbers"], torch.from_numpy(numbers).float())
    assert dataset.signature.parts == (Input("numbers", (3,)), Input("categories", (2,), 6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 9}, "vocabulary must be 6"),
        ({"vocabulary": None}, "vocabulary must be given for tokens, text and tables"),
        ({"columns": {}, "vocabulary": 1}, "a table has columns with categories"),
        ({"inputs": ["kind", "region"], "columns": {k: COLUMNS[k] for k in ("kind", "region")}},
         "a table has columns of numbers, too"),
    ],
)  # fmt: skip
def test_a_description_that_makes_no_table_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        own(**changes)


def test_other_numbers_of_columns_than_declared_are_refused(cache: Path) -> None:
    with pytest.raises(UserError, match=r"inputs of shape \(3,\), but \(2,\) is declared"):
        own(shape=[2]).prepare(cache)


def test_models_of_one_input_do_not_take_a_table_and_say_which_does() -> None:
    with pytest.raises(UserError, match="Models that take them: table"):
        model_class("mlp").require(own().signature)
    assert str(own().signature) == (
        "numbers of shape (3,), categories of shape (2,) with 6 ids for classification"
    )


def test_the_model_computes_a_vector_for_each_category() -> None:
    network = model_class("table")(width=2, widths=(5,)).build(own().signature, Path())  # type: ignore[call-arg]
    numbers, ids = torch.randn(4, 3), torch.tensor([[0, 4], [3, 5], [2, 4], [1, 5]])
    parts = dict(network.named_parameters())
    joined = torch.cat([numbers, parts["vectors.weight"][ids].flatten(1)], dim=1)
    hidden = (joined @ parts["body.0.weight"].T + parts["body.0.bias"]).tanh()
    expected = hidden @ parts["head.weight"].T + parts["head.bias"]
    torch.testing.assert_close(network(numbers=numbers, categories=ids), expected)


def run_of_table() -> RunSpec:
    return from_mapping(
        {
            "dataset": {"id": "own", **DESCRIBED},
            "model": {"id": "table"},
            "method": {"id": "dp-adambc", "learning_rate": 0.1, "clip_norm": 1.0},
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-4},
            "training": {
                "expected_batch_size": 8,
                "steps": 3,
                "physical_batch_size": 4,
                "save": True,
            },
            "seed": 0,
        }
    )


def test_a_run_on_a_table_trains_is_measured_and_predicts(cache: Path, tmp_path: Path) -> None:
    spec = run_of_table()
    spec.dataset.prepare(cache)
    run_job(spec, budget(spec), results=tmp_path, cache=cache, weights=tmp_path, device="cpu")
    result = read_run(run_folder(tmp_path, spec))
    assert result is not None
    assert "vmap" not in result.summary["engine"]
    folder, file, out = run_folder(tmp_path, spec) / MODEL, tmp_path / "new.csv", tmp_path / "out"
    rows(5, 1).drop(columns="renewed").to_csv(file, index=False)
    assert main(["predict", str(folder), str(file), "--out", str(out)]) == 0
    network, _ = read_published(folder, tmp_path)
    inputs = own().inputs_in(file, Path("weights"))[:]
    assert isinstance(inputs, Several)
    expected = call(network, inputs).argmax(dim=-1)
    assert pd.read_csv(out)["predicted"].tolist() == expected.tolist()


def test_audits_put_canaries_beside_the_rows_of_a_table(cache: Path) -> None:
    dataset = own()
    dataset.prepare(cache)
    inner = dataset.load(cache).train
    train = WithCanaries(inner=dataset, canaries=3).load(cache).train
    inputs, targets = train.take(slice(None))
    assert isinstance(inputs, Several)
    assert (len(train), len(inputs), len(targets)) == (len(inner) + 3,) * 3
    real, _ = inner.take(slice(None))
    assert isinstance(real, Several)
    for found, expected in zip(inputs.each, real.each, strict=True):
        assert torch.equal(found[:-3], expected)
    assert targets[-3:].tolist() == [-1, -2, -3]


def test_describe_writes_what_can_be_prepared(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cache / "raw" / "policies" / "train.csv"
    asked = ["--target", "renewed", "--kind", "table", "--columns", yaml.safe_dump(COLUMNS)]
    assert main(["data", "describe", str(file), *asked, "--cache", str(cache)]) == 0
    (said,) = yaml.safe_load(capsys.readouterr().out)["datasets"]
    assert (said["shape"], said["vocabulary"]) == ([3], 6)
    parse(Own, {key: value for key, value in said.items() if key != "id"}).prepare(cache)
