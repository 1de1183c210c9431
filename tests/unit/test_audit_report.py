"""The audit report: what its rows show, and that a violated contract cannot go unnoticed."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipnoise.audit.curve import Guesses
from clipnoise.audit.findings import (
    Bound,
    ContractFinding,
    ControlFinding,
    EmpiricalFinding,
    Finding,
    Largest,
    NoiseFinding,
    Settings,
)
from clipnoise.cli import main
from clipnoise.core.query import Component
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.files import read_json, write_json
from clipnoise.report.audits import build_audit_report
from clipnoise.studies.audits import found_by_audits, refuted_by_guesses

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "reports/templates/audit.typ"


NOISE = NoiseFinding(
    variance=1.002, margin=0.01, numbers=1000, off=0.2, holds=True, said="as declared"
)


def contract(name: str, **changes: Any) -> ContractFinding:
    found = ContractFinding(
        method=name,
        private=True,
        adjacency="add-remove",
        declared=[Component(0.25)],
        microbatch_size=1,
        clip_norm=1.0,
        expected_batch_size=4.0,
        measured=Largest(joint=1.0, pairs=10),
        noise=NOISE,
        checks=[Finding("steps", True, "as many")],
        broken=[],
        broken_checks=[],
        verdict="kept",
    )
    return replace(found, **changes)


def bound(epsilon: float, p_value: float = 1.0) -> EmpiricalFinding:
    return EmpiricalFinding(
        method="any",
        adjacency="add-remove",
        claim="guarantee",
        claimed_epsilon=1.82,
        accountant="prv",
        sampler="poisson",
        sampling_rate=0.9,
        score="likelihood ratio",
        settings=Settings(),
        final_score="change of parameters",
        guesses=Guesses(640, (64,), (40,)),
        p_value=p_value,
        bound=Bound(epsilon, 1.0),
        final_bound=Bound(epsilon / 2, None),
        verdict="refuted" if p_value < 0.05 else "not refuted",
        words="",
    )


def write(
    folder: Path, name: str, found: ContractFinding | EmpiricalFinding | ControlFinding
) -> None:
    values = found.plain() if isinstance(found, ControlFinding) else asdict(found)
    write_json(folder / found.kind / f"{name}.json", values)


def text_of(pdf: bytes, folder: Path) -> str:
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext")
    (folder / "x.pdf").write_bytes(pdf)
    command = ["pdftotext", "-layout", str(folder / "x.pdf"), "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_report_shows_the_findings(tmp_path: Path) -> None:
    write(tmp_path, "good", contract("good"))
    write(tmp_path, "good", bound(0.9))
    write(tmp_path, "bad", contract("bad"))
    write(tmp_path, "bad", bound(2.5, 1e-4))
    write(tmp_path, "plain", contract("plain", private=False, measured=None, noise=None))
    write(tmp_path, "lie", ControlFinding(control="lie", mistake="A lie.", said=["nothing"]))
    text = text_of(build_audit_report(tmp_path, TEMPLATE), tmp_path)
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "not refuted" in lines["good"]
    assert "0.90" in lines["good"]
    assert "0.45" in lines["good"]
    assert "steps for 3 of 3" in text
    assert "Of 3 methods, 1 is refuted; 1 claims no privacy." in text
    assert "the audit is broken: lie." in text
    assert "refuted: canaries are guessed more often than the claim allows" in lines["bad"]
    assert "no claim" in lines["plain"]
    assert "NOT REFUTED" in text
    assert "It can never prove one" in text
    assert "64,000 gradient canaries" in text
    assert "Score of the attack on releases: likelihood ratio." in text
    assert "Score of the attack on final parameters: change of parameters." in text


def test_the_report_on_a_study_names_it_and_says_plainly_that_all_is_well(tmp_path: Path) -> None:
    write(tmp_path, "good", contract("good"))
    write(tmp_path, "good", bound(0.9))
    out = tmp_path / "audit.pdf"
    words = ["--results", str(tmp_path), "--methods", "good", "--template", str(TEMPLATE)]
    words += ["--study", "a-paper/table1"]
    assert main(["audit", "report", *words, "--out", str(out)]) == 0
    text = text_of(out.read_bytes(), tmp_path)
    assert "Audit of the methods of a-paper/table1" in text
    assert "Of 1 method, none is refuted; all of them claim privacy." in text


def test_one_of_many_small_p_values_refutes_only_if_all_methods_together_allow_it(
    tmp_path: Path,
) -> None:
    for name, p_value in (("chance", 0.03), ("wrong", 0.002), *((f"fine{n}", 0.9) for n in "abc")):
        write(tmp_path, name, contract(name))
        write(tmp_path, name, bound(2.0, p_value))
    text = text_of(build_audit_report(tmp_path, TEMPLATE), tmp_path)
    assert "Of 5 methods, 1 is refuted" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "0.03" in lines["chance"]
    assert "not refuted" in lines["chance"]
    assert "refuted: canaries" in lines["wrong"]
    alone = text_of(build_audit_report(tmp_path, TEMPLATE, ["chance"]), tmp_path)
    assert "Of 1 method, 1 is refuted" in alone


def test_a_study_refutes_what_the_report_on_its_methods_refutes(tmp_path: Path) -> None:
    audits, studied = tmp_path / "audit", ["chance", "wrong", *"abc"]
    for name, p_value in {"chance": 0.03, "wrong": 0.002, "other": 0.9}.items():
        write(audits, name, bound(2.0, p_value))
    for name in "abc":
        write(audits, name, bound(0.9, 0.9))
    write(audits, "b", contract("b", verdict="broken", broken=["steps"]))
    write(audits, "c", contract("c", verdict="broken", private=False))
    assert found_by_audits(tmp_path, [*studied, "new"]) == {
        "a": "not refuted: attacks show ε 0.90 of 1.82",
        "b": "refuted: contract broken, attacks show ε 0.90 of 1.82",
        "c": "not refuted: attacks show ε 0.90 of 1.82",
        "chance": "not refuted: attacks show ε 2.00 of 1.82",
        "wrong": "refuted: attacks show ε 2.00 of 1.82",
    }
    assert found_by_audits(tmp_path, ["chance"])["chance"].startswith("refuted")


def test_an_audit_of_each_method_by_itself_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "empirical" / "old.json"
    old = asdict(bound(0.9))
    del old["p_value"]
    write_json(path, old)
    assert found_by_audits(tmp_path, ["old"]) == {}
    write_json(path, {**old, "p_value": None})
    with pytest.raises(UserError, match=r"empirical/old\.json: damaged result file"):
        found_by_audits(tmp_path, ["old"])


@pytest.mark.parametrize("seed", range(20))
def test_methods_are_refuted_whose_p_values_are_small_for_all_of_them(seed: int) -> None:
    drawn = 0.1 * np.random.default_rng(seed).random(8) ** 3
    p_values = {str(number): float(p) for number, p in enumerate(drawn)}
    expected, left = set(), sorted(p_values, key=lambda name: p_values[name])
    while left and p_values[left[0]] * len(left) < 0.05:  # the smallest of those that are left
        expected.add(left.pop(0))
    assert refuted_by_guesses(p_values) == expected


def test_the_report_of_some_methods_shows_no_other_and_no_control(tmp_path: Path) -> None:
    for name in ("good", "fine"):
        write(tmp_path, name, contract(name))
        write(tmp_path, name, bound(0.9))
    text = text_of(build_audit_report(tmp_path, TEMPLATE, ["good"]), tmp_path)
    assert "Of 1 method, none is refuted" in text
    assert "fine" not in {line.split()[0] for line in text.splitlines() if line.split()}
    assert "Controls: deliberate mistakes" not in text
    with pytest.raises(UserError, match="no audit of third"):
        build_audit_report(tmp_path, TEMPLATE, ["good", "third"])


def test_without_results_the_message_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clipnoise audit contract"):
        build_audit_report(tmp_path, TEMPLATE)


def test_what_is_found_is_read_as_it_was_written_infinity_too(tmp_path: Path) -> None:
    endless = Largest(joint=math.inf, components=[math.inf, 1.0], kinds={"made": math.inf})
    broken = contract("bad", measured=endless, noise=replace(NOISE, variance=math.inf))
    for number, found in enumerate((broken, bound(0.9), bound(math.inf))):
        write(tmp_path, str(number), found)
        path = tmp_path / found.kind / f"{number}.json"
        assert parse(type(found), read_json(path)) == found
    lie = ControlFinding(control="lie", mistake="A lie.", contract=broken)
    write(tmp_path, "lie", lie)
    read = read_json(tmp_path / "control" / "lie.json")
    assert parse(ControlFinding, read) == lie
    assert "empirical" not in read


def test_a_result_that_is_none_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "contract" / "x.json", {**asdict(contract("x")), "verdict": "perhaps"})
    with pytest.raises(UserError, match=r"x\.json: verdict: .*'perhaps'"):
        build_audit_report(tmp_path, TEMPLATE)


def test_the_command_rejects_an_unknown_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "control", "half-noisy", "--cache", str(tmp_path)]) == 2
    assert "half-noise" in capsys.readouterr().err


def test_the_command_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    assert main(["audit", "control", "delta-of-batches", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["refuted"]
