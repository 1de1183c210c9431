"""Published ε computed again: known values, and a validated file of assumptions."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from clipnoise.audit.reaccounting import Published, Reaccounted, reaccount, read_published, to_csv
from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.privacy.accountants.poisson import epsilon
from clipnoise.report.audits import READING

FILE = Path(__file__).parents[2] / "reports/published/reaccounting.yaml"
QUICK = {
    "QNLI, ε 3": (3.0, 7.1, 0.1),
    "IMDB, logistic regression, ε 1.5": (1.5, 12.7, 0.2),
    "MNIST, k 2, ε 1": (1.0, 2.3, 0.1),
    "MNIST, k 2, ε 8": (8.0, 61.7, 0.5),
}


@pytest.fixture(scope="module")
def published() -> dict[str, Published]:
    return {row.result: row for row in read_published(FILE)}


@pytest.mark.quick(name=["QNLI, ε 3", "MNIST, k 2, ε 1"])
@pytest.mark.parametrize("name", QUICK)
def test_what_can_be_guaranteed_for_the_released_code(
    name: str, published: dict[str, Published]
) -> None:
    nominal, real, margin = QUICK[name]
    row = reaccount(published[name])
    assert row.published == nominal
    assert row.released == pytest.approx(real, abs=margin)
    assert row.released_tight < row.released


def test_what_is_solved_for_gives_the_published_value(published: dict[str, Published]) -> None:
    row = reaccount(published["QNLI, ε 3"])
    assert row.steps == 4092, "ten epochs, as in the released commands"
    found = epsilon(
        "prv",  # of the released code
        noise_multiplier=row.noise_multiplier,
        sampling_rate=256 / 104743,
        steps=row.steps,
        delta=1 / 410,
    )
    assert found == pytest.approx(3.0, abs=0.01)
    assert found <= 3.0


def test_the_guarantee_of_code_without_a_mistake_is_that_of_its_text(
    published: dict[str, Published],
) -> None:
    sound = {"noise_divisor": 1.0, "nominal_delta": "1/n"}
    row = reaccount(replace(published["MNIST, k 2, ε 1"], **sound))
    assert row.released == row.text == pytest.approx(1.0, abs=2e-3)


def test_noise_for_each_user_is_more_than_noise_on_their_sum(
    published: dict[str, Published],
) -> None:
    row = reaccount(published["StackOverflow, federated, user level, ε 34"])
    assert row.released == pytest.approx(34.0, abs=1), "the code adds it to the sum"
    alone = {"noise_multiplier": 0.3 * math.sqrt(20), "epochs": None, "text_divisor": 1.0}
    assert row.text < 1 < row.released
    assert row.text == reaccount(replace(published[row.result], **alone, epsilon=row.text)).text


def test_nodes_of_a_graph_are_accounted_with_their_out_neighbours(
    published: dict[str, Published],
) -> None:
    row = reaccount(published["ogbn-arxiv, K 7, ε 12"])
    assert row.steps == 668, "the released code computes its ε at δ = 1/(10n)"
    assert row.text == pytest.approx(11.1, abs=0.3), "less at the text's larger δ"
    assert math.isnan(row.text_tight)
    assert math.isnan(row.released)
    alone = reaccount(replace(published["ogbn-arxiv, K 7, ε 12"], degree=None))
    assert alone.steps != row.steps


def test_without_amplification_the_value_is_exact(published: dict[str, Published]) -> None:
    row = reaccount(published["arXiv, BandMF or independent noise, σ 1"])
    assert row.text == pytest.approx(10.0, abs=0.1)
    assert math.isnan(row.released)


def test_the_table_holds_every_assumption(published: dict[str, Published]) -> None:
    row = reaccount(published["arXiv, independent noise, σ 0.134"])
    (line,) = csv.DictReader(io.StringIO(to_csv([row])))
    assert set(line) == set(Reaccounted.__dataclass_fields__)
    assert float(line["text"]) == row.text


def test_every_paper_is_there(published: dict[str, Published]) -> None:
    assert len({row.paper for row in published.values()}) == 4


def test_settings_that_leave_too_much_open_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "results: [{paper: P, result: R, where: W, epsilon: 1, delta: 1e-5, nominal_delta: 1e-5, "
        "examples: 10, batch_size: 2, released: none}]"
    )
    with pytest.raises(UserError, match="exactly one of epochs and noise_multiplier"):
        read_published(path)


def test_the_command_says_why_there_is_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    row = (
        "{paper: P, result: R, where: W, epsilon: 9, delta: 1e-5, nominal_delta: 1e-5, "
        "participations: 3, noise_multiplier: 1, released: %s}"
    )
    path.write_text(f"results: [{row % 'no code was released'}, {row % 'it shuffles'}]")
    assert main(["reaccount", "--out", str(tmp_path / "x.csv"), "--published", str(path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(", no code")
    assert second.endswith(", released code not covered")
    assert "nan" not in first + second


def test_the_report_words_its_values_as_upper_bounds() -> None:
    assert "ε that would hold with Poisson batches" in READING[0]
    assert "upper bounds" in READING[0]
