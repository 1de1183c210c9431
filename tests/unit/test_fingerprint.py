"""The fingerprint changes with code that can change a result, and with nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from clipnoise.run import fingerprint as module

BODY = '''
"""Docstring."""
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import toy.drawing

def run(x):
    """Docstring."""
    from toy import helper
    return helper.double(x)  # comment
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "root.py").write_text(BODY)
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "drawing.py").write_text("COLOUR = 'red'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "PACKAGE", "toy")
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "toy"]:
        del sys.modules[name]


def fresh(folder: Path) -> str:
    importlib.invalidate_caches()
    for cached in (module._fingerprint, module._source, module._read):
        cached.cache_clear()
    return module._fingerprint(("toy.root",))


def test_closure_follows_imports_in_functions_but_not_those_for_type_checking(toy: Path) -> None:
    fresh(toy)
    assert module.closure(("toy.root",)) == {"toy", "toy.root", "toy.helper"}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("root.py", "# comment", "# another comment"),
        ("root.py", '"""Docstring."""', '"""Reworded."""'),
        ("root.py", "    return", "\n    return"),
        ("drawing.py", "red", "blue"),
    ],
)
def test_edits_that_cannot_change_a_result_keep_it(
    toy: Path, file: str, old: str, new: str
) -> None:
    before = fresh(toy)
    path = toy / file
    path.write_text(path.read_text().replace(old, new))
    assert fresh(toy) == before


@pytest.mark.parametrize(
    ("file", "old", "new"), [("helper.py", "2 *", "3 *"), ("root.py", "(x)  #", "(-x)  #")]
)
def test_edits_that_can_change_a_result_move_it(toy: Path, file: str, old: str, new: str) -> None:
    before = fresh(toy)
    path = toy / file
    path.write_text(path.read_text().replace(old, new))
    assert fresh(toy) != before


def test_taking_a_fingerprint_imports_nothing_heavy() -> None:
    code = (
        "import sys; from clipnoise.run.fingerprint import closure; "
        "assert closure(('clipnoise.run.train',)); "
        "assert not {'torch', 'scipy', 'mlflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
