"""A task of the league, from its screen to the page: every command of docs/league.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forked_snakemake
import pytest
import yaml
from workflows import environment, link_checkout

from clipnoise.cli import main

pytestmark = pytest.mark.workflow
RATES = {"tune": {"ranges": {"learning_rate": [0.1, 1], "clip_norm": [0.3, 3]}}}
COMMON: dict[str, Any] = {
    **{"models": ["logistic"], "epsilons": [8], "privacy": {"delta": 1e-5}},
    "hyperparameters": {
        "dp-sgd, dp-adam, dp-lion": RATES,
        "sgd, adam": {"tune": {"ranges": {"learning_rate": [0.01, 1]}}},
    },
}
SHARED = {
    "bases": {
        "common": COMMON,
        "screen": {
            **{"base": "common", "seeds": [1], "tuning": {"trials": 2, "seeds": [101]}},
            "methods": ["sgd", "adam", "dp-sgd", "dp-adam", "dp-lion"],
        },
        "confirm": {
            **{"base": "common", "seeds": [1001, 1002, 1003, 1004]},
            "tuning": {"trials": 2, "searches": 2, "seeds": [2001, 2002]},
            "training": {"correctness": True},
            "screened_by": {"panel": "screen", "methods": 2},
            "methods": ["sgd", "adam", "dp-sgd"],
        },
    }
}
TASK = """title: "League: digits"
description: A tiny task.
scales: none
defaults: {datasets: [digits], training: {expected_batch_size: 130, steps: 3, evaluations: 1}}
panels:
  screen: {base: screen}
report: [{kind: table, costs: true}]
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose league has one tiny task, as the folder of work."""
    link_checkout(tmp_path)
    league = tmp_path / "workflow" / "studies" / "league"
    league.mkdir(parents=True)
    (league / "shared.yaml").write_text(yaml.safe_dump(SHARED))
    (league / "digits.yaml").write_text(TASK)
    (tmp_path / "config.yaml").write_text("studies: [league/digits]\ntracking: 'off'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(checkout: Path) -> None:
    done = forked_snakemake.run(
        ["--cores", "1", "reports/league/digits.pdf"], checkout, environment()
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_task_is_screened_published_confirmed_and_printed(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = checkout / "docs" / "league" / "v3" / "digits.parquet"
    assert main(["league", "publish", "digits"]) == 2
    assert "runs 15 are missing" in capsys.readouterr().err
    train(checkout)
    assert main(["league", "publish", "digits"]) == 0
    assert main(["league", "confirm", "digits"]) == 0
    panels = yaml.safe_load((checkout / "workflow/studies/league/digits.yaml").read_text())[
        "panels"
    ]
    *own, best = panels["confirm"]["methods"]
    assert own == ["sgd", "adam", "dp-sgd"]
    assert best in ("dp-adam", "dp-lion")
    capsys.readouterr()
    assert main(["league"]) == 0
    assert "Only the screen of digits is published." in capsys.readouterr().out

    train(checkout)
    assert main(["league", "publish", "digits"]) == 0
    first = published.read_bytes()
    assert main(["league", "publish", "digits"]) == 0
    assert published.read_bytes() == first
    capsys.readouterr()
    assert main(["league"]) == 0
    page = capsys.readouterr().out
    assert "Of 1 task of this track, 1 is published: digits." in page
    assert "### digits, ε = 8: confirmed" in page
    assert "adam (non-private)" in page
    assert "exclude nothing with fewer than 6 searches. digits (ε = 8) has fewer" in page
    assert main(["league", "--page", "page.pdf"]) == 0
    assert (checkout / "page.pdf").read_bytes().startswith(b"%PDF")
    assert main(["league", "--page", str(published.parent)]) == 0
    assert "From 1 task: digits (n = " in (published.parent / "practice.md").read_text()
    assert (published.parent / "digits.png").is_file()
