"""The judge refutes no method of the suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from every_method import FAMILIES
from judging import copy_of, judged

from clipnoise.audit.judge.source import read_source
from clipnoise.methods.base import example, methods


def test_every_method_of_the_suite_has_a_source_that_no_judge_minds() -> None:
    for kind in methods().values():
        text = Path(str(sys.modules[kind.__module__].__file__)).read_text()
        assert read_source(text) == ([], [])


# Besides one method of each family, those whose updates resemble no other's, and an upper bound.
UNUSUAL = ("adaclip", "dp-microadam", "dp-muon", "dp-schedule-free", "dpzero", "dp-adam-noiseless")


@pytest.mark.long
@pytest.mark.parametrize("name", [*FAMILIES, *UNUSUAL])
def test_a_method_of_the_suite_is_not_refuted(name: str, tmp_path: Path, cache: Path) -> None:
    whole = name == "dp-microadam"  # of its parameters a short run moves only some
    result = judged(copy_of(name), tmp_path, cache, whole=whole, name=f"copied-{name}")
    claims = example(methods()[name]).private
    assert result.verdict == ("not refuted" if claims else "no claim"), result.refuted_by


NAMES = ("hub", "load", "open", "random", "save", "types")
HALF = f'''
from dataclasses import dataclass

from clipnoise.methods.base import ClippedMean, PrivateMethod


@dataclass(frozen=True, kw_only=True)
class Half(PrivateMethod):
    """DP-SGD on the first half of the parameters.

    Source: none.
    """

    id = "half"
    query = ClippedMean()
{"".join(f"    {name}: float = 1.0" + chr(10) for name in NAMES)}
    def update(self, released, state, public):
        kept = (state.theta * 0).clone()
        kept[: len(kept) // 2] = {" * ".join(f"self.{name}" for name in NAMES)}
        return -self.learning_rate * kept * released[0]
'''


def test_a_hyper_parameter_may_have_any_name() -> None:
    assert read_source(HALF) == ([], [])
    problems, _ = read_source(HALF.replace("kept = ", "open('x'); kept = "))
    assert problems


@pytest.mark.long
def test_training_half_of_the_parameters_is_a_remark(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipnoise.audit.judge.verdict._controls", lambda cache: [])
    result = judged(HALF, tmp_path, cache, whole=True)
    assert result.verdict == "not refuted", result.refuted_by
    said = {check.name: check.said for check in result.checks}
    assert said["training"] == "remark: released values move 50.0% of the parameters"
