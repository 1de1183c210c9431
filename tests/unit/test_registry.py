"""A run as an entry of a registry: valid by its schema, and true to what the run states."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from budgets import budget
from jsonschema import Draft202012Validator

from clipnoise.cli import main
from clipnoise.files import read_json
from clipnoise.run.outcome import Outcome
from clipnoise.run.provenance import Provenance
from clipnoise.run.registry import SCHEMA, registry_entry
from clipnoise.run.results import run_folder, write_run
from clipnoise.run.spec import from_mapping

Output = pytest.CaptureFixture[str]
PRIVACY = {"epsilon": 8.0, "accountant": "rdp"}


def finished(folder: Path, privacy: dict[str, Any] | None) -> Path:
    """Write the result of a run that was never trained; return its folder."""
    private = {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1}
    values = {
        "dataset": {"id": "digits"},
        "model": "logistic",
        "method": private if privacy else {"id": "sgd", "learning_rate": 1},
        "training": {"expected_batch_size": 100, "steps": 30},
        "seed": 0,
    }
    run = from_mapping({**values, "privacy": privacy})
    place = run_folder(folder, run)
    write_run(place, run, Outcome(provenance={}), budget(run), Provenance("cpu"))
    return place


def answers(entry: dict[str, Any]) -> dict[str, str]:
    return {one["hazard"]: one["answer"] for one in entry["hazards"]}


SECURE = {**PRIVACY, "delta": 1e-6, "secure_noise": True, "release": "strict"}


@pytest.mark.parametrize(
    "privacy",
    [PRIVACY, SECURE, {**PRIVACY, "sampler": "shuffled"}, {**PRIVACY, "microbatch_size": 2}],
)
def test_an_entry_is_valid_and_states_what_the_run_states(
    privacy: dict[str, Any], tmp_path: Path
) -> None:
    folder = finished(tmp_path, privacy)
    entry = json.loads(json.dumps(registry_entry(folder)))
    Draft202012Validator.check_schema(read_json(SCHEMA))
    Draft202012Validator(read_json(SCHEMA)).validate(entry)
    stated = json.loads((folder / "summary.json").read_text())["privacy"]
    parameters = entry["registry"]["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {"epsilon": stated["epsilon"], "delta": stated["delta"]}
    assert entry["comparable"]["mu"] == stated["profile"]["mu"]
    assert entry["guarantee"]["claim"] == stated["claim"]


def test_hazards_are_answered_by_what_the_run_knows(tmp_path: Path) -> None:
    usual = answers(registry_entry(finished(tmp_path / "usual", PRIVACY)))
    careful = answers(registry_entry(finished(tmp_path / "careful", SECURE)))
    shuffled = {**PRIVACY, "sampler": "shuffled"}
    nominal = answers(registry_entry(finished(tmp_path / "nominal", shuffled)))
    assert usual.keys() == careful.keys() == nominal.keys()
    for hazard in ("delta against 1/n", "random numbers", "unprotected outputs"):
        assert (usual[hazard], careful[hazard]) == ("present", "addressed")
    assert (usual["proof of the mechanism"], nominal["proof of the mechanism"]) == (
        "addressed",
        "present",
    )
    for hazard in ("tuning on private data", "unit of privacy", "several releases"):
        assert careful[hazard] == "not known"
    assert careful["floating-point numbers"] == "present"


@pytest.mark.parametrize("part", ["registry", "mechanism", "guarantee", "tuning"])
def test_the_schema_refuses_what_lacks_a_key_or_has_another(part: str, tmp_path: Path) -> None:
    entry = registry_entry(finished(tmp_path, PRIVACY))
    valid = Draft202012Validator(read_json(SCHEMA))
    lacking, more = deepcopy(entry), deepcopy(entry)
    lacking[part].popitem()
    more[part]["unheard-of"] = 1
    assert not valid.is_valid(lacking)
    assert not valid.is_valid(more)


def test_the_command_writes_the_entry(tmp_path: Path, capsys: Output) -> None:
    folder, out = finished(tmp_path, PRIVACY), tmp_path / "entry.json"
    assert main(["registry", str(folder)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["registry", str(folder), "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == printed == registry_entry(folder)


def test_what_is_not_private_or_not_finished_is_refused(tmp_path: Path, capsys: Output) -> None:
    assert main(["registry", str(finished(tmp_path, None))]) == 2
    assert "non-private" in capsys.readouterr().err
    assert main(["registry", str(tmp_path)]) == 2
    assert "no run has finished here" in capsys.readouterr().err
