"""A run spec contains everything that can change a result, and names what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from clipnoise.errors import UserError
from clipnoise.run.spec import from_mapping, read_spec, to_mapping, write_spec


def values(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "digits",
        "model": "logistic",
        "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        "privacy": {"epsilon": 1},
        "training": {"expected_batch_size": 100, "epochs": 2},
        "seed": 1,
        **changes,
    }


def test_yaml_out_and_in_is_the_same_spec(tmp_path: Path) -> None:
    spec = from_mapping(values())
    path = tmp_path / "spec.yaml"
    path.write_text(write_spec(spec))
    assert read_spec(path) == spec
    assert read_spec(path).hash == spec.hash


def test_defaults_written_out_and_left_out_are_the_same_run() -> None:
    spec = from_mapping(values())
    assert from_mapping(to_mapping(spec)).hash == spec.hash


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"model": "cnn-small"},
        {"dataset": {"id": "digits", "split_seed": 1}},
        {"privacy": {"epsilon": 2}},
        {"privacy": {"epsilon": 1, "accountant": "prv"}},
        {"privacy": {"epsilon": 1, "sampler": "truncated-poisson", "largest_batch": 200}},
        {"privacy": {"epsilon": 1, "sampler": "truncated-poisson", "largest_batch": 201}},
        {"privacy": {"epsilon": 1, "sampler": "shuffled", "accountant": "per-epoch"}},
        {"training": {"expected_batch_size": 100, "epochs": 3}},
        {"method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 2}},
    ],
    ids=str,
)
def test_whatever_can_change_a_result_changes_the_hash(changes: dict[str, Any]) -> None:
    assert from_mapping(values(**changes)).hash != from_mapping(values()).hash


TUNED = {
    "key": "0123456789ab",
    "parameters": ["learning_rate", "epochs"],
    "configurations": 3,
    "runs": 3,
}


@pytest.mark.parametrize(
    "changes",
    [{}, {"method": {"id": "sgd", "learning_rate": 1}, "privacy": None}, {"tuning": TUNED}],
    ids=["private", "non-private", "tuned"],
)
def test_a_run_at_another_seed_is_what_the_file_with_that_seed_says(
    changes: dict[str, Any],
) -> None:
    one, other = (from_mapping(values(**changes, seed=seed)) for seed in (1, 2))
    moved = one.at_seed(2)
    assert (one.seed, moved) == (1, other)
    assert (moved.hash, moved.folder, moved.budget) == (other.hash, other.folder, other.budget)
    assert moved.hash != one.hash == from_mapping(values(**changes)).hash
    assert list(json.loads(moved.to_json()).items()) == list(to_mapping(other).items())


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    turned = dict(reversed(list(values().items())))
    assert from_mapping(turned).hash == from_mapping(values()).hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"id": "dp-sdg"}}, "Did you mean 'dp-sgd'?"),
        ({"model": "logistics"}, "Did you mean 'logistic'?"),
        ({"dataset": "digit"}, "Did you mean 'digits'?"),
        ({"datset": "digits"}, "unknown section 'datset'. Did you mean 'dataset'?"),
        ({"method": {"id": "dp-sgd", "learning_rate": 1, "clip": 1}}, "method.clip: unknown key"),
        ({"privacy": {"epsilon": -1}}, "privacy.epsilon: input should be greater than 0, got -1"),
        ({"privacy": {"epsilon": 1, "noise_multiplier": 1}}, "give exactly one of epsilon and"),
        ({"privacy": {"epsilon": 1, "delta": 2}}, "delta must be below 1"),
        ({"privacy": None}, "dp-sgd adds noise; give an epsilon"),
        ({"method": {"id": "sgd", "learning_rate": 1}}, "sgd adds no noise; leave privacy out"),
        ({"training": {"expected_batch_size": 100}}, "give exactly one of epochs and steps"),
        ({"training": {"expected_batch_size": 10**6, "steps": 1}}, "more than the 1300 private"),
        ({"training": {"expected_batch_size": "many", "steps": 1}}, "a whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_names_file_key_value_and_what_is_allowed(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(values(**changes)))
    with pytest.raises(UserError) as error:
        read_spec(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_is_no_mapping_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"spec\.yaml"):
        read_spec(path)


def test_yaml_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("dataset: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(UserError, match="not valid YAML"):
        read_spec(path)


@given(steps=st.integers(0, 500), evaluations=st.integers(1, 40))
def test_evaluations_begin_at_zero_and_end_at_the_last_step(steps: int, evaluations: int) -> None:
    training = {"expected_batch_size": 100, "steps": steps, "evaluations": evaluations}
    found = from_mapping(values(training=training)).evaluation_steps()
    assert found[0] == 0
    assert found[-1] == steps
    assert found == sorted(set(found))
    assert len(found) <= evaluations + 1


def test_steps_and_delta_follow_from_public_numbers() -> None:
    spec = from_mapping(values())
    assert spec.steps == round(2 * 1300 / 100)
    assert spec.budget is not None
    assert spec.budget.delta == 1 / 1300
    assert spec.mechanism.sampling_rate == 100 / 1300


def test_the_first_steps_of_tree_noise_cost_more_than_their_participations() -> None:
    """At t = 8 of 10 the tree is fuller than at T, so ε there is not that of ⌈t/g⌉ releases."""
    epochs = {"expected_batch_size": 650, "steps": 10}  # of 1,300 examples: every other step
    runs = {
        kind: from_mapping(
            values(
                training=epochs,
                privacy={"noise_multiplier": 1, "sampler": "cyclic", "noise": noise},
            )
        )
        for kind, noise in (("tree", {"kind": "tree"}), ("blt", {"kind": "blt", "buffers": 1}))
    }
    tree, blt = (runs[kind].mechanism.participation for kind in ("tree", "blt"))
    assert tree.groups == blt.groups == 2
    assert tree.prefix_cost > blt.prefix_cost == 1
    assert tree.releases() == blt.releases() == 5
    assert [tree.releases(t) >= blt.releases(t) for t in range(11)] == [True] * 11
    assert tree.releases(4) > blt.releases(4)
    budget = runs["tree"].budget
    assert budget is not None
    assert f"--prefix-cost {tree.prefix_cost!r}" in budget.options()
