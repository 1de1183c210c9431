"""The study new-plugin plans the runs that it is meant to."""

from __future__ import annotations

from pathlib import Path

from clipnoise.studies.study import load_study


def test_every_method_runs_at_every_epsilon_with_every_seed() -> None:
    study = load_study(Path(__file__).with_name("new-plugin.yaml"))
    assert len(study.runs) == 2 * 2 * 3
