"""The judge refutes leaks in a file, and does not refute the methods of the suite."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judged_leaks
import leaks
import pypdf
import pytest
import torch

from clipnoise.audit.judge.source import read_source
from clipnoise.audit.judge.verdict import judge
from clipnoise.cli import main
from clipnoise.core.clipping import ClippedSum
from clipnoise.core.method import Method
from clipnoise.data.digits import Digits, DigitsUsers
from clipnoise.methods.registry import example, methods

ROOT = Path(__file__).parents[2]
LION = ROOT / "examples" / "plugin" / "dp_lion_plugin" / "dp_lion.py"
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    for dataset in (Digits(), DigitsUsers()):
        dataset.prepare(folder)
    return folder


def judged(
    text: str, folder: Path, cache: Path, *, whole: bool = False, **options: Any
) -> dict[str, Any]:
    """Judge a text, in short if not whole: every kind of check, none in full."""
    file = folder / "mine.py"
    file.write_text(text)
    return judge(file, cache, whole=whole, **options)


def refuted_by(result: dict[str, Any]) -> set[str]:
    return {each["name"] for each in result["refuted_by"]}


IN_FULL = ("a tenth of the noise for some B",)  # in short, there is one B
QUICK = (
    "the last run's clean mean",
    "a function of torch is replaced",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in judged_leaks.PLANTED
    ],
)
def test_a_planted_leak_is_refuted_by_what_the_file_does(
    name: str, tmp_path: Path, cache: Path
) -> None:
    text, checks = judged_leaks.PLANTED[name]
    result = judged(text, tmp_path, cache, whole=name in IN_FULL)
    assert result["verdict"] == "refuted"
    assert refuted_by(result) & checks, result["refuted_by"]


MOVED = [
    pytest.param(leak, marks=() if number == 0 else pytest.mark.long, id=leak.__name__)
    for number, leak in enumerate(leaks.LEAKS)
]


@pytest.mark.parametrize("leak", MOVED)
def test_what_the_boundary_refuses_is_refuted_in_a_file(
    leak: Callable[[ClippedSum], object], tmp_path: Path, cache: Path
) -> None:
    result = judged(judged_leaks.moved(leak), tmp_path, cache)
    assert result["verdict"] == "refuted"
    assert refuted_by(result) & {"boundary", "discovery", "behaviour"}


def test_a_type_checker_refutes_what_reaches_across(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("mypy")
    from clipnoise.audit.judge.verdict import Judged, _types

    file = tmp_path / "leaks.py"
    file.write_text(Path(leaks.__file__).read_text())
    crossing = Judged(file, "", {}, cache)
    assert _types(crossing, ROOT / ".mypy_cache" / "judge")
    (found,) = crossing.refuted_by
    assert '"ClippedSum"' in found.said


def copy_of(name: str) -> str:
    """Return the file of a method of the suite, each id in it another one."""
    kind = methods()[name]
    source = Path(str(sys.modules[kind.__module__].__file__)).read_text()
    return re.sub(r'^    id = "', '    id = "copied-', source, flags=re.MULTILINE)


def test_every_method_of_the_suite_has_a_source_that_no_judge_minds() -> None:
    for kind in methods().values():
        source = read_source(Path(str(sys.modules[kind.__module__].__file__)).read_text())
        assert source == type(source)((), ())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "dp-adam-pub" else pytest.mark.long)
        for name, kind in methods().items()
    ],
)
def test_a_method_of_the_suite_is_not_refuted(name: str, tmp_path: Path, cache: Path) -> None:
    result = judged(copy_of(name), tmp_path, cache, name=f"copied-{name}")
    claims = example(methods()[name]).private
    assert result["verdict"] == ("not refuted" if claims else "no claim"), result["refuted_by"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, int, str]:
    """What the command leaves and prints when it judges DP-Lion in full."""
    folder = tmp_path_factory.mktemp("judgement")
    words = ["judge", str(LION), "--out", str(folder), "--cache", str(cache)]
    words += ["--template", str(ROOT / "reports" / "templates" / "audit.typ")]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(ROOT)
        lines: list[str] = []
        patched.setattr("builtins.print", lambda *said, **_: lines.append(" ".join(map(str, said))))
        code = main(words)
    return folder, code, "\n".join(lines)


@pytest.mark.long
def test_dp_lion_of_the_readme_is_judged_in_full(whole: tuple[Path, int, str]) -> None:
    folder, code, shown = whole
    result = json.loads((folder / "judgement.json").read_text())
    assert code == 0, shown
    assert shown.splitlines()[-1] == "dp-lion: not refuted"
    assert all(check["holds"] for check in result["checks"])
    assert result["claim"]["adjacency"] == "add-remove"
    assert result["claim"]["epsilon"]["1.0"] > result["claim"]["epsilon"]["4.0"] > 0
    assert result["cost"]["buffers"] == 1
    assert [one["as_expected"] for one in result["controls"]] == [True, True]
    assert len(pypdf.PdfReader(folder / "judgement.pdf").pages) == 1


def test_a_refuted_file_ends_with_the_reason_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"name": "updates", "holds": False, "said": "step 3 depends on private data"}
    result: dict[str, Any] = {
        "file": "mine.py", "sha256": "0" * 64, "method": "mine", "hyperparameters": {},
        "verdict": "refuted", "refuted_by": [found], "checks": [found], "controls": [],
        "claim": None, "cost": None, "not_checked": ["GPUs"],
    }  # fmt: skip
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("clipnoise.audit.judge.verdict.judge", lambda *_, **__: result)
    assert main(["judge", "mine.py", "--out", str(tmp_path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "mine: refuted: updates: step 3 depends on private data"
    result["verdict"], result["controls"] = "void", [{"name": "leaky", "found": [],
                                                     "as_expected": False}]  # fmt: skip
    assert main(["judge", "mine.py", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("mine: void: the control leaky came out wrong\n")


LAST = "return -self.learning_rate * direction.sign()"
MISTAKES = {
    "def f(:": "invalid syntax",
    "x = 1": "holds 0 methods",
    "from .helpers import x": "No module named",
    LION.read_text().replace(LAST, "return direction[:1]"): "update must return",
    LION.read_text().replace(LAST, "return 1 / 0"): "ZeroDivisionError",
    LION.read_text().replace('id = "dp-lion"', ""): "it needs an id",
}


@pytest.mark.parametrize("text", MISTAKES, ids=list(MISTAKES.values()))
def test_a_mistake_is_no_refutation(
    text: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(text)
    words = ["judge", str(tmp_path / "mine.py"), "--out", str(tmp_path), "--cache", str(cache)]
    words += ["--template", str(ROOT / "reports" / "templates" / "audit.typ")]
    assert main(words) == 2
    assert MISTAKES[text] in capsys.readouterr().err


def test_a_method_may_be_named_and_an_unknown_name_has_a_nearest_one(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(copy_of("dp-sgd"))
    words = ["judge", str(tmp_path / "mine.py"), "--out", str(tmp_path), "--cache", str(cache)]
    words += ["--template", str(ROOT / "reports" / "templates" / "audit.typ")]
    assert main([*words, "--method", "copied-dp-sgdd"]) == 2
    assert "Did you mean 'copied-dp-sgd'" in capsys.readouterr().err
    assert main(words) == 2
    assert "Name one with --method" in capsys.readouterr().err


SOURCES = {
    "import os\n": "line 1: it imports os",
    "import torch\nx = torch.sys.argv\n": "line 2: it reaches torch.sys",
    "import torch\ntorch.add = max\n": "line 2: it replaces torch.add",
    "KEPT = []\ndef f(x):\n    KEPT.append(x)\n": "line 3: it keeps something in KEPT",
    "def f(x, kept=[]):\n    return x\n": "line 1: it has a default argument",
    "def f(x, name):\n    return getattr(x, name)\n": "line 2: it reads an attribute whose name",
    "def f(x):\n    return getattr(x, 'f_back')\n": "line 2: it reads other objects",
    "def f():\n    global x\n    x = 1\n": "line 2: it keeps x outside",
    "from clipnoise.core.clipping import _SEALED\n": "line 1: it imports clipnoise.core.clipping",
}


@pytest.mark.parametrize("text", SOURCES, ids=list(SOURCES.values()))
def test_reading_the_source_names_the_line(text: str) -> None:
    assert read_source(text).problems[0].startswith(SOURCES[text])


def test_a_module_that_is_not_followed_is_named() -> None:
    assert read_source("import scipy.signal\n").followed == ("scipy.signal",)


def test_messages_hold_data_and_no_code() -> None:
    from clipnoise.audit.judge.wire import pack, unpack

    message = {"a": [torch.arange(6.0).reshape(2, 3), None], "b": {"c": torch.tensor(True)}}
    there = unpack(pack(message))
    assert torch.equal(there["a"][0], message["a"][0])
    assert there["b"]["c"].dtype == torch.bool
    with pytest.raises(TypeError, match="neither plain data nor a tensor: Method"):
        pack({"a": object.__new__(Method)})
    with pytest.raises(ValueError, match=r"not a message|Expecting|decode"):
        unpack(b"kept and not refuted")
