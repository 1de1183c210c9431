"""The claims of the studies, held against the numbers that their own papers print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clipnoise.cli.claims import planned_rows
from clipnoise.cli.program import run
from clipnoise.report.claims import Printed, comparisons, deciding, in_print
from clipnoise.report.published import printed_runs
from clipnoise.studies.file import PaperClaim
from clipnoise.studies.study import load_study, names_below, published_tables

ROOT = Path(__file__).resolve().parents[2]
STUDIES, PUBLISHED = ROOT / "workflow/studies", ROOT / "reports/published"
DRAWS = 200


@cache
def printed(name: str) -> tuple[tuple[tuple[PaperClaim, ...], ...], pd.DataFrame]:
    """Return the claims of a study, and what its paper prints."""
    study = load_study(STUDIES / f"{name}.yaml")
    if not study.claims:
        return (), pd.DataFrame()
    tables = published_tables(study, PUBLISHED)
    return study.claims, printed_runs(planned_rows(study), study.report, tables)


def judged() -> Iterator[tuple[tuple[PaperClaim, ...], Printed, pd.DataFrame]]:
    """Yield every claim of a paper of which the paper prints numbers."""
    for name in names_below(STUDIES, "*/*.yaml"):
        claims, frame = printed(name)
        for claim in claims:
            paper = in_print(claim, frame)
            if paper.found:
                yield claim, paper, frame


@pytest.mark.long
def test_the_numbers_of_a_paper_contradict_only_the_claims_that_say_so() -> None:
    wrong = [
        f"{claim[0].text} {paper.say()}"
        for claim, paper, _ in judged()
        if (paper.verdict != "holds") != bool(claim[0].contradicted)
    ]
    assert not wrong


@pytest.mark.long
def test_no_claim_says_that_it_is_contradicted_where_nothing_is_printed() -> None:
    for name in names_below(STUDIES, "*/*.yaml"):
        claims, frame = printed(name)
        for claim in claims:
            assert in_print(claim, frame).found or not claim[0].contradicted


def drawn(frame: pd.DataFrame, metric: str, generator: np.random.Generator) -> pd.DataFrame:
    """Return a replication: runs of each printed configuration with its mean and deviation."""
    spread = frame[f"{metric} deviation"]
    known = frame[spread.notna()]
    runs = known.loc[known.index.repeat(known["seeds"].astype(int))].reset_index(drop=True)
    width = runs[f"{metric} deviation"].clip(lower=1e-6)  # 0 in print is a rounded number
    noise = generator.standard_normal(len(runs)) * width
    seeds = runs.groupby(["panel", "dataset", "model", "budget", "label"]).cumcount()
    values = {metric: runs[metric] + noise, "seed": seeds}
    return runs.drop(columns="seeds").assign(**values)


def share_that_holds(claim: tuple[PaperClaim, ...], paper: Printed, frame: pd.DataFrame) -> float:
    """Return in what share of replications the claim holds."""
    generator = np.random.default_rng(0)
    compared = [
        pair
        for one in claim
        for pair in ((one.panels[0], one.method), *((one.than_panel, label) for label in one.than))
    ]
    mine = pd.concat(
        frame[(frame["panel"] == panel) & (frame["label"] == label)]
        for panel, label in dict.fromkeys(compared)
    )
    holds = 0
    for _ in range(DRAWS):
        runs = drawn(mine, paper.found[0].metric.column, generator)
        found = deciding(comparisons(claim, runs), paper.bounds)
        holds += all(one.verdict(paper.bounds) == "holds" for one in found)
    return holds / DRAWS


@pytest.mark.long
def test_replications_show_that_a_claim_holds_where_its_seeds_are_said_to_resolve_it() -> None:
    resolved, others = {}, {}
    for claim, paper, frame in judged():
        if paper.verdict == "holds" and not any(np.isnan(one.spread) for one in paper.found):
            said = paper.needed is not None and paper.needed <= paper.seeds
            shares = resolved if said else others
            shares[claim[0].text] = share_that_holds(claim, paper, frame)
    assert len(resolved) > 5
    assert len(others) > 5
    assert {text: share for text, share in resolved.items() if share < 0.8} == {}
    assert {text: share for text, share in others.items() if share > 0.95} == {}


def test_the_command_prints_each_claim_with_what_its_paper_gives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--studies", str(STUDIES), "--published", str(PUBLISHED)]
    assert run(["claims", "dp-pmlf/table3", "--from", "published", *where]) == 0
    text = capsys.readouterr().out
    assert text.startswith("dp-pmlf/table3\n  holds ")
    assert "contradicts the claim. At ε = 1 Table 3 has 92.04 against 92.03" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 100
    assert run(["claims", "dp-pmlf/table3", "--json", *where]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]["dp-pmlf/table3"]
    assert [one["verdict"] for one in claims].count("does not hold") == 1
    assert {one["seeds"] for one in claims} == {5}
    assert all(one["found"] for one in claims)


def test_the_command_names_the_nearest_paper(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--studies", str(STUDIES), "--published", str(PUBLISHED)]
    assert run(["claims", "dp-plmf", *where]) == 2
    assert "Did you mean 'dp-pmlf'" in capsys.readouterr().err
