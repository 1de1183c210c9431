"""The commands calibrate and account: what they print, write, and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from clipnoise.cli import main
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, epsilon
from clipnoise.privacy.accountants.selection import selected_epsilon
from clipnoise.privacy.calibration import read_calibration
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import privacy_profile, rounded_up
from clipnoise.privacy.samplers import SAMPLERS
from clipnoise.privacy.trials import DrawnTrials

MECHANISM = ["--delta", "1e-5", "--sampling-rate", "0.05", "--steps", "100"]
Output = pytest.CaptureFixture[str]


def test_calibrate_writes_the_file_and_prints_the_result(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "new" / "key.json"
    words = ["calibrate", "--epsilon", "1", *MECHANISM, "--evaluation-steps", "0", "100"]
    assert main([*words, "--out", str(path)]) == 0
    written = read_calibration(path)
    assert 0.999 < written.epsilon <= 1.0
    assert written.spent == {0: 0.0, 100: written.epsilon}
    assert f"{written.noise_multiplier:.6f}" in capsys.readouterr().out


def test_calibrate_prints_sigma_and_epsilon_under_every_accountant(capsys: Output) -> None:
    assert main(["calibrate", "--noise-multiplier", "2", *MECHANISM]) == 0
    printed = capsys.readouterr().out
    for name in ("rdp", "prv", "pld"):
        value = epsilon(name, noise_multiplier=2, sampling_rate=0.05, steps=100, delta=1e-5)
        assert f"{name:<12}{value:.4f}" in printed
    assert "2.000000" in printed


def test_other_accountants_are_asked_about_the_same_participation(capsys: Output) -> None:
    words = ["--groups", "4", "--sampler", "cyclic-poisson"]
    assert main(["calibrate", "--noise-multiplier", "2", *MECHANISM, *words]) == 0
    printed = capsys.readouterr().out
    value = epsilon("prv", noise_multiplier=2, sampling_rate=0.05, steps=25, delta=1e-5)
    assert f"prv         {value:.4f}" in printed


def test_account_prints_every_accountant_or_the_one_asked_for(capsys: Output) -> None:
    value = epsilon("rdp", noise_multiplier=2, sampling_rate=0.05, steps=100, delta=1e-5)
    assert main(["account", "--noise-multiplier", "2", *MECHANISM]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["rdp", "prv", "pld"]
    assert lines[4:6] == ["", "by pld"]
    assert [line[:12].strip() for line in lines[6:]] == [
        "Gaussian DP",
        "TPR at FPR",
        "δ at ε",
        "ε at δ",
    ]
    assert main(["account", "--noise-multiplier", "2", *MECHANISM, "--accountant", "rdp"]) == 0
    assert capsys.readouterr().out == f"{value:.4f}\n"


def test_account_leaves_a_space_between_a_huge_epsilon_and_its_adjacency(capsys: Output) -> None:
    assert main(["account", "--noise-multiplier", "0.001", *MECHANISM]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith(" add-remove")
    assert float(line.split()[1]) > 1e7


def test_account_gives_everything_as_json(capsys: Output) -> None:
    assert main(["account", "--noise-multiplier", "2", *MECHANISM, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    takes_part = Participation(sampling_rate=0.05, steps=100)
    for name in POISSON_ACCOUNTANTS:
        profile = privacy_profile(takes_part, name, 2.0)
        rates = stated[name]["true_positive_rates"]
        assert stated[name]["mu"] == profile.mu
        assert rates == {"0.001": profile.true_positive_rate(0.001), "0.01": ANY}
        assert stated[name]["profile"]["deltas"] == list(profile.deltas)
    assert main(["account", "--noise-multiplier", "0.001", *MECHANISM, "--json"]) == 0
    assert "cannot bound" in json.loads(capsys.readouterr().out)["pld"]["unavailable"]


@pytest.mark.long
def test_account_shows_epsilon_with_and_without_the_choice_among_trials(capsys: Output) -> None:
    law, run = DrawnTrials(law="poisson", mean=4), (4.0, 0.05, 100)
    chosen = selected_epsilon(law, run, then=run, delta=1e-5)
    words = ["account", "--noise-multiplier", "4", *MECHANISM]
    trials = ["--trials", '{"law": "poisson", "mean": 4}']
    assert main([*words, *trials, "--json"]) == 0
    with_choice = json.loads(capsys.readouterr().out)
    assert with_choice.pop("epsilon_with_tuning") == chosen
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == with_choice
    assert main([*words, *trials]) == 0
    assert f"\nwith the choice  {chosen:.4f}\n" in capsys.readouterr().out
    assert main([*words, *trials, "--accountant", "pld"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{with_choice['pld']['epsilon']:.4f}"
    assert second == f"{chosen:.4f}  with the choice"


@pytest.mark.parametrize("k", [1, 3])
def test_participations_are_one_gaussian_mechanism(k: int, capsys: Output) -> None:
    words = ["--participations", str(k), "--delta", "1e-7"]
    assert main(["account", "--noise-multiplier", "1", *words]) == 0
    value = gaussian_epsilon(k**-0.5, 1e-7)
    first, _, gaussian, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["exact", f"{value:.4f}", "add-remove"]
    assert gaussian == f"Gaussian DP μ = {rounded_up(k**0.5)}, exact"
    assert main(["calibrate", "--epsilon", str(value), *words]) == 0
    assert "1.000000" in capsys.readouterr().out


def test_micro_batches_are_accounted_at_twice_the_clip_norm(capsys: Output) -> None:
    micro = [*MECHANISM, "--microbatch", "4"]
    assert main(["account", "--noise-multiplier", "4", *micro]) == 0
    doubled = capsys.readouterr().out
    assert main(["account", "--noise-multiplier", "2", *MECHANISM]) == 0
    assert capsys.readouterr().out == doubled
    assert main(["calibrate", "--epsilon", "1", *MECHANISM]) == 0
    single = float(capsys.readouterr().out.split()[3])
    assert main(["calibrate", "--epsilon", "1", *micro]) == 0
    assert float(capsys.readouterr().out.split()[3]) == pytest.approx(2 * single, abs=2e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "3"], "--participations instead"),
        (["--participations", "2", "--steps", "3"], "cannot be combined"),
        (["--participations", "2", "--groups", "3"], "cannot be combined with --groups"),
        (["--participations", "2", "--trials", '{"mean": 2}'], "cannot be combined with --trials"),
        ([*MECHANISM, "--trials", '{"law": "binomial"}'], "trials.law: input should be 'negative"),
    ],
)
def test_half_a_mechanism_is_refused(words: list[str], said: str, capsys: Output) -> None:
    assert main(["account", "--noise-multiplier", "1", "--delta", "1e-5", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_file_holds_ordinary_calibrations_only(tmp_path: Path, capsys: Output) -> None:
    words = ["--epsilon", "1", *MECHANISM, "--microbatch", "2", "--out", str(tmp_path / "x.json")]
    assert main(["calibrate", *words]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--delta", "1", "less than 1"),
        ("--delta", "1/n", "valid number"),
        ("--sampling-rate", "1.2", "less than or equal to 1"),
        ("--sampling-rate", "0", "greater than 0"),
        ("--steps", "2.5", "valid integer"),
        ("--steps", "-1", "greater than or equal to 0"),
        ("--noise-multiplier", "inf", "finite"),
        ("--noise-multiplier", "nan", "greater than 0"),
        ("--accountant", "gdp", "'rdp', 'prv', 'pld'"),
    ],
)
@pytest.mark.parametrize("command", ["account", "calibrate"])
def test_a_wrong_value_names_the_option_and_what_is_allowed(
    command: str, option: str, value: str, allowed: str, capsys: Output
) -> None:
    words = [command, "--noise-multiplier", "2", *MECHANISM, f"{option}={value}"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert f"clipnoise {command}: Invalid value for '{option}'" in message
    assert allowed in message


@pytest.mark.parametrize("given", [[], ["--epsilon", "1", "--noise-multiplier", "2"]])
def test_calibrate_takes_exactly_one_of_epsilon_and_sigma(given: list[str], capsys: Output) -> None:
    assert main(["calibrate", *given, *MECHANISM]) == 2
    assert "give exactly one" in capsys.readouterr().err


def test_calibrate_refuses_what_it_cannot_reach_and_writes_nothing(
    tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "key.json"
    words = ["calibrate", "--epsilon", "0.0001", *MECHANISM, "--accountant", "rdp"]
    assert main([*words, "--out", str(path)]) == 2
    assert "out of reach" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_calibrate_refuses_evaluations_after_the_end(capsys: Output) -> None:
    words = ["calibrate", "--epsilon", "1", *MECHANISM, "--evaluation-steps", "101"]
    assert main(words) == 2
    assert "evaluation_steps: must not exceed steps, which is 100" in capsys.readouterr().err


def test_no_accountant_is_asked_about_releases_that_mean_something_else(capsys: Output) -> None:
    words = ["--delta", "1e-5", "--sampling-rate", "0.1", "--groups", "10", "--steps", "100"]
    words += ["--sampler", "random-allocation", "--accountant", "pld-allocation"]
    assert main(["calibrate", "--noise-multiplier", "3", *words]) == 0
    printed = capsys.readouterr().out
    assert "ε (pld-allocation)" in printed
    assert not [line for line in printed.splitlines() if line.startswith(("rdp ", "pld ", "prv "))]


@pytest.mark.parametrize(
    ("sampler", "nominal"), [("poisson", False), ("shuffled", True), ("fixed-size", True)]
)
def test_an_epsilon_that_is_not_proved_for_the_batches_is_called_nominal(
    sampler: str, nominal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["calibrate", "--epsilon", "3", "--delta", "1e-5", "--sampling-rate", "0.1"]
    asked += ["--steps", "20", "--sampler", sampler]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert ("ε (pld, nominal)" in printed) == nominal
    numbers = [line for line in printed.splitlines() if line.startswith(("rdp ", "pld ", "prv "))]
    assert len(numbers) == 3
    assert all(line.endswith("nominal") == nominal for line in numbers)
    assert main([*asked, "--out", str(tmp_path / "file.json")]) == 0
    assert ("(pld, nominal)" in capsys.readouterr().out) == nominal


RATE, TURNS = ["--sampling-rate", "0.25"], ["--sampling-rate", "1", "--groups", "4"]
DRAWN = {  # a mechanism for each sampler, and whose ε is a guarantee for it
    "poisson": (RATE, "rdp prv pld"),
    "truncated-poisson": ([*RATE, "--truncation-probability", "1e-9"], "rdp prv pld"),
    "random-allocation": ([*RATE, "--groups", "4"], "pld-allocation"),
    "balls-in-bins": ([*TURNS, "--noise", '{"kind": "blt", "buffers": 1}'], "monte-carlo"),
    "b-min-sep": (
        [*RATE, "--groups", "2", "--noise", '{"kind": "banded", "bands": 2}'],
        "monte-carlo",
    ),
    "cyclic-poisson": ([*RATE, "--groups", "4"], "rdp prv pld"),
    "cyclic": (TURNS, "rdp prv pld per-epoch"),
    "full": (["--sampling-rate", "1"], "rdp prv pld per-epoch"),
    "fixed-size": ([*RATE, "--accountant", "rdp-replace", "--examples", "40"], "rdp-replace"),
    "shuffled": (TURNS, "per-epoch"),
}


def test_a_mechanism_of_every_sampler_is_accounted_below() -> None:
    assert set(DRAWN) == set(SAMPLERS)


@pytest.mark.quick(sampler=["poisson", "cyclic", "shuffled"])
@pytest.mark.parametrize("sampler", DRAWN)
def test_account_answers_for_every_sampler_as_calibrate_does(sampler: str, capsys: Output) -> None:
    words, proved = DRAWN[sampler]
    given = ["--noise-multiplier", "3", "--delta", "1e-5", "--steps", "8", "--sampler", sampler]
    assert main(["account", *given, *words, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    del stated["delta"]
    assert " ".join(stated) == proved
    for name, bounds in stated.items():
        chosen = [] if "--accountant" in words else ["--accountant", name]
        assert main(["calibrate", *given, *words, *chosen]) == 0
        _, second, _, fourth, *_ = capsys.readouterr().out.splitlines()
        assert second.split()[-1] == f"{bounds['epsilon']:.6f}"
        assert fourth.split("  ")[-1].strip() == f"{bounds['adjacency']}, {sampler}"
        assert bounds["claim"] == "guarantee"
    if sampler != "poisson":
        assert main(["account", *given, *words, "--trials", '{"mean": 2}']) == 2
        assert "trials: what a choice costs is known for the sampler" in capsys.readouterr().err


@pytest.mark.parametrize("sampler", ["shuffled", "random-allocation"])
def test_account_calls_what_is_not_proved_nominal(sampler: str, capsys: Output) -> None:
    words = ["account", "--noise-multiplier", "2", *MECHANISM, "--sampler", sampler]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith("add-remove, nominal") for line in lines[1:4])
    assert all("nominal" in line for line in lines[6:])
    assert main([*words, "--accountant", "pld"]) == 0
    assert capsys.readouterr().out.endswith("  nominal\n")


def test_account_refuses_what_a_sampler_cannot_have(capsys: Output) -> None:
    words = ["account", "--noise-multiplier", "2", *MECHANISM, "--sampler", "cyclic"]
    assert main(words) == 2
    assert "sampling_rate: must be 1 for the sampler 'cyclic'" in capsys.readouterr().err


def test_account_refuses_beforehand_what_takes_monte_carlo_long(capsys: Output) -> None:
    words = ["account", "--noise-multiplier", "2", "--delta", "1e-5", "--steps", "200"]
    words += ["--sampler", "balls-in-bins", "--sampling-rate", "1", "--groups", "101"]
    words += ["--noise", '{"kind": "independent"}']
    assert main(words) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "--groups: must be at most 10 " in message
    assert "up to 100 with --accountant monte-carlo" in message
    assert main([*words, "--accountant", "monte-carlo"]) == 2
    assert "--groups: must be at most 100 " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--affected-examples", "8", "--microbatch", "4"], "--microbatch: no analysis covers"),
        (["--sampler", "truncated-poisson"], "--truncation-probability: give it with --sampler"),
        (["--truncation-probability", "1e-9"], "--truncation-probability: give it with --sampler"),
        (["--steps", "1000000000000"], "--steps: must be at most 1,000,000,000, got"),
    ],
)
def test_what_no_epsilon_could_be_said_of_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["account", "--noise-multiplier", "1", "--delta", "1e-5", "--sampling-rate", "0.1"]
    assert main([*given, "--steps", "10", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_unit_of_the_noise_on_nodes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["account", "--noise-multiplier", "1", "--delta", "1e-5", "--sampling-rate", "1"]
    assert main([*given, "--steps", "1", "--affected-examples", "8", "--sampler", "full"]) == 0
    assert "σ is in units of 16 C, by which one unit can move" in capsys.readouterr().out
