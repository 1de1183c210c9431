"""A judged method is tuned, trained and ranked in the league by one command."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pypdf
import pytest
import yaml
from workflows import ROOT, environment, link_checkout

from clipnoise.audit.judge.verdict import Judgement
from clipnoise.cli import main
from clipnoise.report.publication import run_rows
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import PUBLISHED, table, to_parquet

pytestmark = pytest.mark.workflow

LION = ROOT / "examples" / "plugin" / "dp_lion_plugin" / "dp_lion.py"
SPACE = {"ranges": {"learning_rate": [0.001, 0.1]}}
TINY = {
    "title": "A tiny league",
    "scales": "none",
    "panels": {
        "confirm": {
            **{"datasets": ["digits"], "models": ["logistic"], "methods": ["dp-sgd", "dp-adam"]},
            **{"seeds": [1, 2, 3, 4], "epsilons": [8]},
            "tuning": {"seeds": [101, 102], "searches": 2, "trials": 2},
            "training": {"expected_batch_size": 130, "steps": 3, "evaluations": 1},
            "hyperparameters": {
                name: {"tune": {"ranges": {"learning_rate": [0.1, 1], "clip_norm": [0.3, 3]}}}
                for name in ("dp-sgd", "dp-adam")
            },
        }
    },
    "report": [{"kind": "table", "costs": True}],
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose league is tiny, as the folder of work."""
    link_checkout(tmp_path)
    (tmp_path / "workflow" / "studies" / "league").mkdir(parents=True)
    (tmp_path / "workflow" / "studies" / "league" / "lite.yaml").write_text(yaml.safe_dump(TINY))
    (tmp_path / "config.yaml").write_text("studies: [league/lite]\ntracking: 'off'\n")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judged(file: Path, verdict: Any) -> Judgement:
    """Return a judgement as the judge does; it has tests of its own, and takes minutes."""
    return Judgement(
        file=file.name,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        method="my-dp-lion",
        hyperparameters={
            **{"learning_rate": 1.0, "clip_norm": 1.0, "betas": [0.9, 0.99]},
            "clip_rule": {"kind": "hard", "gamma": None, "per": "example"},
        },
        verdict=verdict,
        private=True,
        track="no public data",
    )


def test_published_runs_that_cannot_be_read_are_told_before_the_method_is_judged(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clipnoise.audit.judge.verdict.judge", None)
    monkeypatch.setattr("clipnoise.studies.league.require_data", lambda *_: None)
    words = ["judge", str(LION), "--against", "nothing.parquet"]
    assert main([*words, "--league", "lite"]) == 2
    assert (
        "nothing.parquet: no such file. `clipnoise collect` and `clipnoise publish`"
        in capsys.readouterr().err
    )
    assert main([*words, "--league", "lit"]) == 2
    assert "unknown task 'lit'. Did you mean 'lite'? Allowed: lite." in capsys.readouterr().err
    assert main(words) == 2
    assert "--against: needs --league" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "code"), [("not refuted", 0), ("no claim", 0), ("refuted", 1), ("void", 1)]
)
def test_the_exit_code_is_that_of_the_verdict_whatever_is_said_of_it(
    verdict: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "clipnoise.audit.judge.verdict.judge", lambda file, *_, **__: judged(file, verdict)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["judge", str(LION)]) == code
    assert f"my-dp-lion: {verdict}" in capsys.readouterr().out


@pytest.mark.long
def test_a_judged_method_is_ranked_and_only_what_is_new_is_trained(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = "refuted"
    monkeypatch.setattr(
        "clipnoise.audit.judge.verdict.judge", lambda file, *_, **__: judged(file, verdict)
    )
    words = ["judge", str(LION), "--league", "lite", "--cores", "1", "--tune", json.dumps(SPACE)]
    assert main(words) == 1
    assert "left out: the league" in capsys.readouterr().out
    assert not (checkout / "results").exists()

    verdict = "not refuted"
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "task digits; ε 8; metric Test accuracy (%); mean" in shown
    league = json.loads((checkout / "judgement" / "judgement.json").read_text())["league"]
    assert (league["task"], league["space"], league["tune"]) == ("lite", "given", SPACE)
    (at,) = league["settings"]
    assert (at["task"], at["epsilon"], at["runs"], at["planned"]) == ("digits", 8, 4, 4)
    assert at["rank"]["of"] == 2
    assert at["time"] > 0
    assert 0.001 < json.loads(at["hyperparameters"])["learning_rate"] < 0.1
    assert (checkout / league["report"]).is_file()
    (page,) = pypdf.PdfReader(checkout / "judgement" / "judgement.pdf").pages
    said = " ".join(page.extract_text().split())
    assert "The league, lite" in said
    assert "clip_rule hard (per example)" in said
    summaries = {path: path.stat().st_mtime_ns for path in checkout.rglob("summary.json")}
    assert len(summaries) == 2 * 2 * (2 + 2)  # methods × searches × (seeds + trials)

    (runs,) = checkout.glob("results/studies/*/runs.parquet")
    rows = run_rows(read_runs(runs)).replace({"my-dp-lion": "published-lion"})
    (checkout / "league.parquet").write_bytes(to_parquet(table(PUBLISHED, rows.to_dict("records"))))
    assert main([*words, "--against", "league.parquet"]) == 0
    league = json.loads((checkout / "judgement" / "judgement.json").read_text())["league"]
    assert league["among"] == "the methods in league.parquet"
    assert league["settings"][0]["rank"]["of"] == 3
    assert {path: path.stat().st_mtime_ns for path in checkout.rglob("summary.json")} == summaries
    assert os.environ["CLIPNOISE_PLUGINS"] == "-"  # nothing of the user's is imported here
