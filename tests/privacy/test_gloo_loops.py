"""Training loops of real processes, one of which reads the examples and records releases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import gloo_loops
import pytest
from gloo_loops import GlooRanks, Processes, processes
from loops import SIGMA, claim, examples

from clipnoise.audit.loops.claim import LoopJudgement
from clipnoise.audit.loops.verdict import judge_loop
from clipnoise.errors import UserError


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    with processes(folder) as started:
        yield started


def judged(loop: GlooRanks) -> LoopJudgement:
    return judge_loop(claim(), loop, examples(), level="quick")


@pytest.mark.long
@pytest.mark.parametrize("kind", [GlooRanks, gloo_loops.GlooRanksShareNoise])
def test_processes_that_add_the_noise_of_one_sum_are_not_refuted(
    kind: type[GlooRanks], ranks: Processes
) -> None:
    result = judged(kind(ranks=ranks))
    assert not result.refuted_by
    assert len(result.checks) >= 9


@pytest.mark.long
def test_a_share_of_the_noise_on_one_process_alone_is_refuted(ranks: Processes) -> None:
    result = judged(gloo_loops.GlooShareOnOneRank(ranks=ranks))
    assert "sensitivity" in {each.name for each in result.refuted_by}


@pytest.mark.long
def test_noise_on_both_processes_is_measured_and_breaks_no_claim(ranks: Processes) -> None:
    result = judged(gloo_loops.GlooNoiseOnEveryRank(ranks=ranks))
    assert not result.refuted_by
    (said,) = (each.said for each in result.checks if each.name == "sensitivity")
    measured = float(re.findall(r"about ([\d.]+) times", said)[0])
    assert measured == pytest.approx(2**0.5 * SIGMA, rel=0.1)


def test_a_loop_that_reads_in_other_processes_is_told_how_it_can_be_judged() -> None:
    with pytest.raises(UserError, match="send each rank its part of a batch"):
        judge_loop(claim(), gloo_loops.spawning, examples(), level="quick")
