"""The judge refutes no method of the suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from judging import copy_of, judged

from clipnoise.audit.judge.source import read_source
from clipnoise.methods.base import example, methods


def test_every_method_of_the_suite_has_a_source_that_no_judge_minds() -> None:
    for kind in methods().values():
        source = read_source(Path(str(sys.modules[kind.__module__].__file__)).read_text())
        assert source == type(source)((), ())


@pytest.mark.long
@pytest.mark.parametrize("name", methods())
def test_a_method_of_the_suite_is_not_refuted(name: str, tmp_path: Path, cache: Path) -> None:
    whole = name == "dp-microadam"  # of its parameters a short run moves only some
    result = judged(copy_of(name), tmp_path, cache, whole=whole, name=f"copied-{name}")
    claims = example(methods()[name]).private
    assert result["verdict"] == ("not refuted" if claims else "no claim"), result["refuted_by"]
