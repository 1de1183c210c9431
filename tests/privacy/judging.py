"""What the tests of the judge share."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch

from clipnoise.audit.judge.verdict import Judgement, judge
from clipnoise.methods.base import methods

torch.set_num_threads(1)

REAL = "dp-adam-pub"  # the method that real workers judge


def judged(
    text: str, folder: Path, cache: Path, *, whole: bool = False, **options: Any
) -> Judgement:
    """Judge a text, in short if not whole: every kind of check, none in full."""
    file = folder / "mine.py"
    file.write_text(text)
    return judge(file, cache, whole=whole, **options)


def refuted_by(result: Judgement) -> set[str]:
    return {each.name for each in result.refuted_by}


def copy_of(name: str) -> str:
    """Return the file of a method of the suite, each id in it another one."""
    kind = methods()[name]
    source = Path(str(sys.modules[kind.__module__].__file__)).read_text()
    return re.sub(r'^    id = "', '    id = "copied-', source, flags=re.MULTILINE)
