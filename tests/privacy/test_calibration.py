"""Calibration: never above the target, close below it, and damaged files are refused."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from budgets import flat_budget

from clipnoise.errors import UserError
from clipnoise.fields import to_plain
from clipnoise.privacy import calibration
from clipnoise.privacy.accountants.poisson import epsilon
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import (
    ROUNDING,
    TOLERANCE,
    Calibration,
    _bracket,
    _start,
    calibrate,
    find_calibration,
    read_calibration,
)
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.trials import DrawnTrials

VALUES: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "sampling_rate": 0.05, "steps": 200}


def target(**changes: Any) -> Budget:
    return flat_budget(**{**VALUES, **changes})


@pytest.mark.parametrize("accountant", ["prv", "pld"])
@pytest.mark.parametrize("wanted", [0.3, 3.0])
def test_the_numerical_accountants_calibrate_as_closely(accountant: str, wanted: float) -> None:
    found = calibrate(target(accountant=accountant, epsilon=wanted))
    assert wanted - TOLERANCE < found.epsilon <= wanted


def test_less_noise_would_miss_the_target() -> None:
    found = calibrate(target())
    less = epsilon(
        "rdp",
        noise_multiplier=0.998 * found.noise_multiplier,
        sampling_rate=0.05,
        steps=200,
        delta=1e-5,
    )
    assert less > 2.0


def test_sigma_falls_as_epsilon_grows_and_rises_with_steps_and_rate() -> None:
    sigma = calibrate(target()).noise_multiplier
    assert calibrate(target(epsilon=2.5)).noise_multiplier < sigma
    assert calibrate(target(steps=300)).noise_multiplier > sigma
    assert calibrate(target(sampling_rate=0.07)).noise_multiplier > sigma
    assert calibrate(target(delta=1e-7)).noise_multiplier > sigma


def test_a_given_sigma_is_accounted_not_changed() -> None:
    found = calibrate(target(epsilon=None, noise_multiplier=1.3))
    assert (found.budget.epsilon, found.noise_multiplier) == (None, 1.3)
    assert found.epsilon == epsilon(
        "rdp", noise_multiplier=1.3, sampling_rate=0.05, steps=200, delta=1e-5
    )


def test_spent_starts_at_zero_never_falls_and_ends_at_epsilon() -> None:
    found = calibrate(target(evaluation_steps=(200, 0, 50, 100, 50)))
    assert list(found.spent) == [0, 50, 100, 200]
    assert found.spent[0] == 0.0
    assert list(found.spent.values()) == sorted(found.spent.values())
    assert found.spent[200] == found.epsilon


def test_a_target_below_what_an_accountant_can_prove_says_what_it_can() -> None:
    with pytest.raises(UserError, match=r"epsilon: 0\.001 is out of reach.*least it reaches is 0"):
        calibrate(target(epsilon=0.001))


def test_a_target_that_so_short_a_run_cannot_spend_is_reported() -> None:
    with pytest.raises(UserError, match="most it reaches is 0"):
        calibrate(target(steps=0))


def test_an_accountant_that_fails_at_every_sigma_says_why() -> None:
    with pytest.raises(UserError, match="rounding errors"):
        calibrate(target(accountant="prv", delta=1e-14))


@pytest.mark.parametrize("start", [-4.0, 0.0, 4.0])
@pytest.mark.parametrize("root", [-5.0, -3.9, 0.1, 3.0, 9.0])
def test_a_search_encloses_its_end_in_few_steps_wherever_it_begins(
    root: float, start: float
) -> None:
    asked = []

    def distance(log_sigma: float) -> float:
        asked.append(log_sigma)
        assert len(asked) < 200
        return root - log_sigma

    low, high = _bracket(target(), distance, start, 0.1)
    assert low <= root <= high
    assert high - low < max(0.2, 3 * abs(root - start))


@pytest.mark.parametrize("both", [{"noise_multiplier": 1.0}, {"epsilon": None}])
def test_exactly_one_of_epsilon_and_sigma_is_given(both: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="exactly one"):
        target(**both)


def test_evaluation_beyond_the_last_step_is_refused() -> None:
    with pytest.raises(UserError, match="evaluation_steps: must not exceed steps, which is 200"):
        target(evaluation_steps=(0, 201))


def test_equal_budgets_share_a_key_and_every_part_of_a_budget_changes_it() -> None:
    key = target(evaluation_steps=(0, 200)).key
    assert key == target(epsilon=2, evaluation_steps=(200, 0, 0)).key
    others = [
        target(evaluation_steps=(0, 100, 200)),
        target(epsilon=2.0000001, evaluation_steps=(0, 200)),
        target(epsilon=None, noise_multiplier=2.0, evaluation_steps=(0, 200)),
        target(delta=1e-6, evaluation_steps=(0, 200)),
        target(sampling_rate=0.06, evaluation_steps=(0, 200)),
        target(steps=201, evaluation_steps=(0, 200)),
        target(accountant="prv", evaluation_steps=(0, 200)),
    ]
    assert len({key, *(other.key for other in others)}) == len(others) + 1


def test_the_key_is_the_same_in_another_process_without_heavy_imports() -> None:
    code = (
        "import sys; from clipnoise.privacy.budget import Budget;"
        "from clipnoise.privacy.participation import Participation;"
        "participation = Participation(sampling_rate=0.05, steps=200);"
        "asked = dict(epsilon=2.0, delta=1e-5, accountant='rdp', sampler='poisson');"
        "print(Budget(**asked, participation=participation).key);"
        "print([m for m in ('torch', 'opacus', 'scipy', 'numpy') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert output[:2] == [target().key, "[]"]


@pytest.mark.parametrize(
    "values",
    [
        {"sampling_rate": 64 / 1437, "evaluation_steps": (0, 3, 200), "accountant": "prv"},
        {"sampler": "truncated-poisson", "truncation_probability": 1e-9},
        {"trials": DrawnTrials(mean=3)},
    ],
)
def test_options_are_the_command_line_that_gives_the_same_target(values: dict[str, Any]) -> None:
    from clipnoise.cli.privacy import budget_of
    from clipnoise.cli.privacy import calibrate as command

    budget = target(**values)
    options = command.make_context("calibrate", shlex.split(budget.options())).params
    assert budget_of(options) == budget


def test_a_budget_says_what_is_calibrated() -> None:
    assert target().label == "ε=2, δ=1e-05, 200 steps, rdp"
    given = target(epsilon=None, noise_multiplier=0.5, trials=DrawnTrials(mean=3))
    assert given.label == "σ=0.5, δ=1e-05, 200 steps, rdp, choice included"


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    found = calibrate(target(evaluation_steps=(0, 200)))
    path = tmp_path / "results" / "calibration" / "key.json"
    found.write(path)
    assert read_calibration(path) == found
    values = json.loads(path.read_text())
    assert set(values) == {"budget", "noise_multiplier", "epsilon", "spent", "adjacency"}
    assert values["budget"]["participation"]["sampling_rate"] == 0.05
    assert values["adjacency"] == "add-remove"
    assert set(values["spent"]) == {"0", "200"}


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """Return what stands in a calibration file."""
    found = calibrate(target(epsilon=None, noise_multiplier=1.5, evaluation_steps=(0, 200)))
    return dict(to_plain(found))


def test_the_example_file_is_accepted(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(values))
    assert isinstance(read_calibration(path), Calibration)


@pytest.mark.parametrize("key", ["budget", "noise_multiplier", "epsilon", "spent", "adjacency"])
def test_a_missing_key_is_one_clear_error(tmp_path: Path, values: dict[str, Any], key: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({name: value for name, value in values.items() if name != key}))
    with pytest.raises(UserError) as error:
        read_calibration(path)
    assert str(error.value) == f"{path}: {key}: required, but not given."


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noise_multiplier", 0),
        ("noise_multiplier", "NaN"),
        ("epsilon", -1),
        ("budget.accountant", "gdp"),
        ("budget.sampler", "shuffle"),
        ("budget.participation.steps", -1),
        ("budget.extra", 1),
        ("adjacency", "swap"),
        ("spent", {"ten": 1.0}),
        ("extra", 1),
    ],
)
def test_a_wrong_value_names_file_and_key(
    tmp_path: Path, values: dict[str, Any], key: str, value: Any
) -> None:
    path = tmp_path / "file.json"
    whole = deepcopy(values)
    *sections, name = key.split(".")
    reduce(dict.__getitem__, sections, whole)[name] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=rf"file\.json: {key}"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("noise_multiplier", 0.01, r"states ε [\d.]+, but .* 0\.01, costs ε [\d.e+]{5}"),
        ("epsilon", 0.5, r"states ε 0\.5, but .* costs ε [\d.]+"),
        ("spent", {"0": 0.0, "200": 0.5}, r"states ε 0\.5, but .* step 200, [\d.]+, costs ε"),
        ("spent", {"0": 0.0, "77": 0.5}, r"states ε 0\.5, but .* step 77, .* costs ε nan"),
        ("adjacency", "replace", "its adjacency must be add-remove, got replace"),
    ],
)
def test_a_file_whose_noise_does_not_cost_the_epsilon_that_it_states_is_refused(
    tmp_path: Path, key: str, value: Any, wrong: str
) -> None:
    path = tmp_path / "file.json"
    whole = dict(to_plain(calibrate(target(evaluation_steps=(0, 200)))))
    path.write_text(json.dumps(whole))
    read_calibration(path)
    path.write_text(json.dumps({**whole, key: value}))
    with pytest.raises(UserError, match=rf"file\.json: {wrong}"):
        read_calibration(path)


def test_a_file_whose_noise_misses_the_target_is_refused_even_if_it_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.json"
    less = calibrate(target(epsilon=None, noise_multiplier=0.6))
    whole = {**to_plain(less), "budget": to_plain(target())}
    path.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=r"costs ε \d\S*, above the target 2\. "):
        read_calibration(path)


def test_a_calibration_that_was_changed_in_memory_is_refused_for_a_run() -> None:
    found = calibrate(target())
    with pytest.raises(UserError, match=r"calibration: states ε 1.*, but .* 0\.01, costs ε"):
        replace(found, noise_multiplier=0.01).check(target())


def test_what_a_budget_has_computed_of_itself_is_no_part_of_it() -> None:
    found = calibrate(target())
    assert found.budget.key
    found.check(target())
    known = target()
    assert known.key
    with pytest.raises(UserError, match=r"another budget: delta 1e-06, not 1e-05\."):
        calibrate(target(delta=1e-6)).check(known)


def test_no_more_than_rounding_errors_are_forgiven_where_epsilon_is_zero() -> None:
    found = calibrate(target(epsilon=None, noise_multiplier=1e4, delta=0.01))
    assert found.epsilon == 0
    replace(found, epsilon=ROUNDING / 2).verify()
    with pytest.raises(UserError, match="states ε 2e-06, but"):
        replace(found, epsilon=2 * ROUNDING).verify()


def test_no_more_than_rounding_errors_in_proportion_are_forgiven_where_epsilon_is_large() -> None:
    found = calibrate(target(epsilon=None, noise_multiplier=0.1))
    assert found.epsilon > 100
    replace(found, epsilon=found.epsilon * (1 + ROUNDING / 2)).verify()
    with pytest.raises(UserError, match="states ε"):
        replace(found, epsilon=found.epsilon * (1 + 2 * ROUNDING)).verify()


def test_a_file_whose_noise_is_not_the_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    asked = to_plain(target(epsilon=None, noise_multiplier=0.9))
    more = to_plain(calibrate(target(epsilon=None, noise_multiplier=1.1)))
    path.write_text(json.dumps({**more, "budget": asked}))
    with pytest.raises(UserError, match=r"must be the budget's, 0\.9, got 1\.1"):
        read_calibration(path)


def test_steps_without_an_epsilon_are_named_in_their_order() -> None:
    found = calibrate(target(evaluation_steps=(0, 200)))
    with pytest.raises(UserError, match=r"no ε at step 9, 10, 100\."):
        found.check(target(evaluation_steps=(0, 100, 9, 10, 200)))


def test_reading_a_calibration_loads_neither_torch_nor_the_rest_of_opacus(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    calibrate(target()).write(path)
    code = (
        "import sys; from pathlib import Path;"
        "from clipnoise.privacy.calibration import read_calibration;"
        f"read_calibration(Path({str(path)!r}));"
        "print([name for name in ('torch', 'opacus') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("text", ["", '{"epsilon_target": 1.0, "del', "\x00\xff"])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"file\.json: not a calibration file"):
        read_calibration(path)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: cannot be read: No such file"):
        read_calibration(tmp_path / "none.json")


def test_of_several_files_that_of_the_budget_is_read_or_else_the_first(tmp_path: Path) -> None:
    paths = [tmp_path / f"{epsilon}.json" for epsilon in (1.0, 2.0)]
    found = [calibrate(target(epsilon=epsilon)) for epsilon in (1.0, 2.0)]
    for calibrated, path in zip(found, paths, strict=True):
        calibrated.write(path)
    assert find_calibration(paths, target(epsilon=2.0)) == found[1]
    other = target(epsilon=3.0)
    with pytest.raises(UserError, match=r"made for another budget: epsilon 1\.0, not 3\.0\. "):
        find_calibration(paths, other).check(other)
    with pytest.raises(UserError, match="a private run needs the file of its budget"):
        find_calibration([], other)


def verifications(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that grows by σ each time that a verification computes ε."""
    computed: list[float] = []
    accounted = calibration._accounted

    def counted(budget: Budget, sigma: float) -> Calibration:
        computed.append(sigma)
        return accounted(budget, sigma)

    monkeypatch.setattr(calibration, "_accounted", counted)
    return computed


def test_what_was_verified_once_is_not_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    calibrate(target()).write(path)
    computed = verifications(monkeypatch)
    first = read_calibration(path)
    assert len(computed) == 1
    again = read_calibration(path)
    again.check(target())
    assert (again, len(computed)) == (first, 1)


def test_a_seal_counts_only_for_the_content_and_the_code_that_it_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    found = calibrate(target())
    found.write(path)
    read_calibration(path)
    replace(found, noise_multiplier=0.9).write(path)
    with pytest.raises(UserError, match=r"states ε 1.*, but its noise multiplier, 0\.9, costs"):
        read_calibration(path)
    found.write(path)
    computed = verifications(monkeypatch)
    monkeypatch.setattr(calibration, "_analysis", lambda: "another version")
    read_calibration(path)
    assert len(computed) == 1


def test_a_calibration_that_was_trusted_and_then_changed_is_refused() -> None:
    found = calibrate(target())
    found.trust()
    with pytest.raises(UserError, match=r"states ε"):
        replace(found, noise_multiplier=0.9).check(target())


@pytest.mark.parametrize(
    ("values", "poisson"),
    [
        (
            {"sampler": "random-allocation", "accountant": "pld-allocation", "groups": 20},
            {"sampling_rate": 0.05},
        ),
        (
            {
                **{"sampler": "balls-in-bins", "accountant": "monte-carlo", "groups": 20},
                **{"sampling_rate": 1.0, "noise": BandedNoise(bands=4)},
            },
            {"sampling_rate": 0.05},
        ),
        (  # of the 1 + 3 · 0.1 steps that an example waits, the rate of a step in each group
            {
                **{"sampler": "b-min-sep", "accountant": "monte-carlo", "groups": 4},
                **{"sampling_rate": 0.1, "noise": BandedNoise(bands=4)},
            },
            {"sampler": "cyclic-poisson", "groups": 4, "sampling_rate": 4 * 0.1 / 1.3},
        ),
    ],
)
def test_a_search_by_draws_or_for_drawn_turns_begins_near_poisson_batches(
    values: dict[str, Any], poisson: dict[str, Any]
) -> None:
    start, step = _start(target(steps=40, **values))
    near = calibrate(target(steps=40, accountant="rdp", **poisson)).noise_multiplier
    assert (start, step) == pytest.approx((math.log(near) - 0.07, 0.07))


@pytest.mark.quick(wanted=[1.0])
@pytest.mark.parametrize(
    ("rate", "steps", "wanted"), [(0.0769, 195, 1.0), (0.0769, 195, 8.0), (0.01, 1000, 3.0)]
)
def test_numerical_accounting_asks_for_less_noise_and_few_evaluations(
    rate: float, steps: int, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"sampling_rate": rate, "steps": steps, "epsilon": wanted}
    by_rdp = calibrate(target(accountant="rdp", **values)).noise_multiplier
    asked, spent = [], Budget.spent

    def counted(self: Budget, sigma: float, steps: int | None = None) -> float:
        if self.accountant == "pld":
            asked.append(sigma)
        return spent(self, sigma, steps)

    monkeypatch.setattr(Budget, "spent", counted)
    by_pld = calibrate(target(accountant="pld", **values)).noise_multiplier
    assert 0.85 * by_rdp < by_pld < by_rdp
    assert len(set(asked)) <= 8
