"""The judge says what it found, and tells a mistake of the user's from a leak."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pypdf
import pytest
import torch
from judging import copy_of, judged, refuted_by
from torch import Tensor

from clipnoise.audit.contract import check_contract
from clipnoise.audit.declaration import check_query, too_far
from clipnoise.audit.findings import Finding
from clipnoise.audit.judge import remote
from clipnoise.audit.judge.source import read_file, read_source
from clipnoise.audit.judge.verdict import HONEST, Judgement, judge
from clipnoise.audit.mistakes import LeakySGD
from clipnoise.audit.subject import Subject, at_clip_norm
from clipnoise.cli import main
from clipnoise.core.clip_rules import ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import LocalTraining, Method
from clipnoise.core.query import Component, Query
from clipnoise.core.state import Public, State
from clipnoise.core.taken import TAKEN
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.methods.base import ClippedMean

ROOT = Path(__file__).parents[2]
LION = ROOT / "examples" / "plugin" / "dp_lion_plugin" / "dp_lion.py"


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
    assert shown.splitlines()[-1] == "my-dp-lion: not refuted"
    assert all(check["holds"] for check in result["checks"])
    assert result["claim"]["adjacency"] == "add-remove"
    assert result["claim"]["epsilon"]["1.0"] > result["claim"]["epsilon"]["4.0"] > 0
    profiles = result["claim"]["profile"]
    assert profiles["1.0"]["mu"] > profiles["4.0"]["mu"] > 0
    assert result["cost"]["buffers"] == 1
    assert [one["holds"] for one in result["controls"]] == [True, True]
    assert len(pypdf.PdfReader(folder / "judgement.pdf").pages) == 1


def test_a_refuted_file_ends_with_the_reason_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Finding("updates", False, "step 3 depends on private data")
    refuted = Judgement(
        file="mine.py", sha256="0" * 64, method="mine", hyperparameters={}, verdict="refuted",
        refuted_by=[found], checks=[found], not_checked=["GPUs"],
    )  # fmt: skip
    results = [refuted]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("clipnoise.audit.judge.verdict.judge", lambda *_, **__: results[-1])
    assert main(["judge", "mine.py", "--out", str(tmp_path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "mine: refuted: updates: step 3 depends on private data"
    assert (tmp_path / "judgement.pdf").exists()
    monkeypatch.chdir(tmp_path)  # nothing is checked out here
    assert main(["judge", "mine.py"]) == 1
    said = capsys.readouterr().out
    assert "no PDF without reports/templates/audit.typ, judgement/judgement.json" in said
    assert [path.name for path in (tmp_path / "judgement").iterdir()] == ["judgement.json"]
    leaky = Finding("leaky", False, "refuted by nothing, and not by audit")
    results.append(replace(refuted, verdict="void", controls=[leaky]))
    assert main(["judge", "mine.py", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("mine: void: the control leaky came out wrong\n")


def test_a_query_for_other_units_than_are_clipped_is_refuted_and_trains_nothing(
    tmp_path: Path, cache: Path
) -> None:
    result = judged(HONEST.replace("ClippedMean", "ClippedUserMean"), tmp_path, cache)
    assert refuted_by(result) == {"query"}
    assert "protected under 'add-remove'" in result.refuted_by[0].said
    assert any("its query declares 'add-remove-user'" in one for one in result.not_checked)


BOUNDED = "clip_norm: Annotated[float, Le(2)]"


def with_option(option: str) -> str:
    """Return a file in which DP-SGD has another option."""
    head = "from typing import Annotated\nfrom annotated_types import Le\n"
    return head + HONEST.replace("    query", f"    {option}\n    query")


@pytest.mark.parametrize(
    ("option", "given", "scaled"),
    [
        ("clip_norm: float | None", {"clip_norm": None}, {"clip_norm": None}),
        ("clip_norms: dict[str, float]", {"clip_norms": {"w": 1}}, {"clip_norms": {"w": 1}}),
        ("clip_norms: tuple[float, bool]", {"clip_norms": [1, True]}, {"clip_norms": (5, True)}),
        (BOUNDED, {"clip_norm": 1}, "clip_norm 5.0 is tried, too, 5 times what is given"),
    ],
)
def test_a_clip_norm_may_be_anything_and_have_bounds(
    option: str, given: dict[str, object], scaled: dict[str, object] | str, tmp_path: Path
) -> None:
    (file := tmp_path / "mine.py").write_text(with_option(option))
    with closing(remote.Process(file)) as process:
        subject = Subject(remote.remote_method("honest", json.dumps(given), process))
        if isinstance(scaled, str):
            with pytest.raises(UserError, match=scaled):
                at_clip_norm(subject, 5.0)
        else:
            method = at_clip_norm(subject, 5.0).method
            assert {name: getattr(method, name) for name in scaled} == scaled


class Buckets(ClippedMean):
    """Release the sums of 16 buckets, each over the root of its length."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (torch.stack([each.sum() / len(each) ** 0.5 for each in mean.chunk(16)]),)


class AsLongAsItsSigns(ClippedMean):
    """Release as many numbers as are positive, at least one."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean[: max(1, int((mean > 0).sum()))] * 0,)


class Longer(ClippedMean):
    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean.repeat(2) / 2,)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (Buckets(), "it declares enough"),
        (AsLongAsItsSigns(), "how many numbers it releases depends on the mean"),
        (Longer(), "something else than finite vectors like the mean"),
    ],
)
def test_values_may_be_shorter_than_the_mean_and_always_as_short(query: Query, said: str) -> None:
    found = check_query(Subject(LeakySGD(query=query)))
    assert (found.holds, said in found.said) == (query == Buckets(), True), found.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('mine.py --tune {"grid":{}}', "--tune: needs --league"),
        ("mine.py --against runs.parquet", "--against: needs --league"),
        ("mine.py --level full", "--level: is about a --loop"),
        ('mine.py --league lite --tune {"rages":{}}', "Did you mean 'ranges'"),
        ("--loop mine.py --method mine", "--method: is about a method in a FILE"),
        ('--loop mine.py --hyperparameters {"x":1}', "--hyperparameters: is about a method"),
        ("--loop mine.py --league lite", "--league: is about a method"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", *words.split(), "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


class Slightly(ClippedMean):
    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (1.00001 * mean,)


def test_what_is_refuted_never_reads_as_once_as_far_as_declared() -> None:
    said = check_query(Subject(LeakySGD(query=Slightly()))).said
    assert "one example moves the release 1.0000" in said
    assert too_far(1 + 2e-6) == "one example moves the release 1.000002 times as far as declared"
    assert "moves the release 2 times" in too_far(2 + 2e-6)
    assert "infinitely many times" in too_far(float("inf"))


class Bounded(ClippedMean):
    """Release the mean's projection onto a small ball, a contraction."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean / max(1.0, 4 * float(mean.norm()) / clip_norm),)


class Thresholded(ClippedMean):
    """Release the mean less a threshold in each coordinate, a contraction."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (torch.nn.functional.softshrink(mean, clip_norm / 2),)


@pytest.mark.parametrize("query", [Bounded(), Thresholded()], ids=["ball", "threshold"])
def test_a_query_may_be_a_contraction_that_is_not_linear(query: Query) -> None:
    result = check_contract(Subject(LeakySGD(query=query)), attacked=(2,))
    assert result.verdict == "kept", result.broken


HELPER = "def half(x): return x / 2\n"
POINTS = "    def points(self, *_): return [self]\n"  # and no weight beside it
SLIPS = {
    "state.decay('m', released[0])": "missing 1 required positional argument: 'beta'",
    "half()": "missing 1 required positional argument: 'x'",
    "state.decay('m', released[0], (0.9, 0.99))": "TypeError",
    "public.totalsteps": "'Public' object has no attribute 'totalsteps'",
    "public.require('gradient')": "public.gradient, but this run has none",
    "self.clipping(state, public)": "object is not iterable",
}
ASKED = ("public.clean_gradient", "Released(released[0])", "ClippedSum(released[0]) / 2")


@pytest.mark.parametrize("line", [*SLIPS, *ASKED])
def test_a_slip_is_no_refutation_and_asking_for_private_values_is(
    line: str, tmp_path: Path
) -> None:
    text = "from clipnoise.core.clipping import ClippedSum\n" + HELPER
    text += HONEST.replace("import Cl", "import Released, Cl").replace(
        "    return", f"    {line}; return"
    )
    text = text.replace("    query", POINTS + "    query")
    (file := tmp_path / "mine.py").write_text(text)
    kind = UserError if line in SLIPS else remote.RefusedError
    with closing(remote.Process(file)) as process:
        method = remote.remote_method("honest", "{}", process)
        with pytest.raises(kind, match=re.escape(SLIPS.get(line, ""))):
            method.update((torch.ones(2),), State(torch.zeros(2), 1), Public(1.0, 4.0, 10))


LAST = "return -self.learning_rate * direction.sign()"
MISTAKES = {
    "def f(:": "invalid syntax",
    "x = 1": "holds 0 methods",
    "from .helpers import x": "No module named",
    LION.read_text().replace(LAST, "return direction[:1]"): "update must return",
    LION.read_text().replace(LAST, "return 1 / 0"): "ZeroDivisionError",
    LION.read_text().replace('id = "my-dp-lion"', ""): "it needs an id",
    LION.read_text() + "from clipnoise.core.clipping import OwnClipRule": "mine.py:33: clip rules",
    "from clipnoise.privacy.noise import OwnNoise\n": "mine.py:1: clip rules and kinds of noise",
}
FAILED = (
    ("def f(:", "line 1: SyntaxError: invalid syntax."),
    ("1 / 0", "line 1: ZeroDivisionError: division by zero."),
    (HONEST.replace('    id = "honest"', ""), "class Honest: it needs an id of lower-case"),
    (HONEST.replace("ClippedMean()", "1 / 0"), "line 12: ZeroDivisionError: division by zero."),
)


@pytest.mark.parametrize(("text", "said"), FAILED, ids=[said for _, said in FAILED])
def test_a_mistake_is_told_once_and_without_the_place_of_a_copy(
    text: str, said: str, tmp_path: Path
) -> None:
    (file := tmp_path / "mine.py").write_text(text)
    with closing(remote.Process(file)) as process:
        with pytest.raises(UserError) as raised:
            process.ask("methods")
        assert str(raised.value).startswith(said)


@pytest.mark.parametrize("name", ["mine.txt", "test_mine.py", "conftest.py", "__init__.py"])
def test_a_file_that_is_not_imported_says_so(name: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / name).write_text(HONEST)
    with pytest.raises(UserError, match="files with such names are not imported"):
        judge(tmp_path / name, cache)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(HONEST, encoding="utf-8-sig")
    assert read_file(file) == (HONEST, [], [])


SOON = ("invalid syntax", "update must return")  # of a file that is read, and of one that is run


@pytest.mark.quick(text=[text for text, said in MISTAKES.items() if said in SOON])
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


def test_a_file_with_the_name_of_a_module_does_not_stand_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a module that the process imports, it would know that it is judged."""
    monkeypatch.setattr(remote, "subprocess", subprocess)  # one that imports all by itself
    file = tmp_path / "statistics.py"
    file.write_text(copy_of("dp-sgd"))
    with closing(remote.Process(file)) as process:
        assert "copied-dp-sgd" in process.ask("methods")


def test_a_process_that_answers_too_late_is_ended_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late answer would be taken for that to the next question."""
    monkeypatch.setattr(remote, "SECONDS", 1)
    file = tmp_path / "late.py"
    file.write_text(copy_of("dp-sgd") + "import time\ntime.sleep(2)\n")
    with closing(remote.Process(file)) as process:
        with pytest.raises(UserError, match="did not answer within 1 seconds"):
            process.ask("methods")
        with pytest.raises(UserError, match="did not answer within 1 seconds"):
            process.ask("changed")  # which is answered at once
        assert process._connection.closed
    assert remote.LONGER["train"] > 120


@pytest.mark.long
def test_what_a_step_costs_is_relative_to_a_method_that_protects_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipnoise.audit.judge.worker import Worker

    monkeypatch.setattr("clipnoise.audit.judge.worker.TIMED", 15)
    worker, local = Worker(), {"local_epochs": 2, "local_batch_size": 4}
    for name, options, than, unit in (
        ("dp-adam", {}, "dp-sgd", "example"),
        ("dp-fedadam", local, "dp-fedavg", "user"),
    ):
        cost = worker.ask_cost([name, json.dumps(options), ""], str(cache))
        assert (cost["than"], cost["unit"], cost["buffers"]) == (than, unit, 2)
        assert 0.2 < cost["time"] < 5  # with equal local training


SOURCES = {
    "import os\n": "line 1: it imports os",
    "import torch\nx = torch.sys.argv\n": "line 2: it reaches torch.sys",
    "import fcntl\n": "line 1: it imports fcntl",
    "def f(x):\n    return open(x)\n": "line 2: it reads or writes outside",
    "def f(x):\n    return eval(x)\n": "line 2: it runs code",
    "import torch\nx = torch.Generator()\n": "line 2: it looks at a random stream",
    "from clipnoise.core.clipping import _SEALED\n": "line 1: it imports clipnoise.core.clipping",
    "from dataclasses import sys\n": "line 1: it imports dataclasses, sys",
    "from clipnoise.errors import *\n": "line 1: it imports clipnoise.errors, *",
    "from numpy import random as r\n": "line 1: it imports numpy, random",
    "import torch\nt = torch\nx = t.sys.argv\n": "line 3: it reaches t.sys",
    "def f():\n    return f.__globals__\n": "line 2: it reaches f.__globals__",
    "x = getattr(int, 'a')\n": "line 1: it runs code",
    "import torch\ntorch._C\n": "line 2: it reaches torch._C",
    "def f(x):\n    match x:\n        case Exception(__traceback__=y):\n            return y\n": (
        "line 3: it reaches __traceback__"
    ),
    "print(__file__)\n": "line 1: it reaches __file__",
    "import torch\ntorch.distributed.FileStore('x', 1)\n": "line 2: it reaches torch.distributed",
    "from torch import distributed\n": "line 1: it imports torch, distributed",
    "import typing\ntyping.operator\n": "line 2: it reaches typing.operator",
    "import numpy as np\nnp.testing.runstring('1', {})\n": "line 2: it reaches np.testing",
    "def f(x):\n    x.numpy().dump('left')\n": "line 2: it reads or writes outside",
    "def f(x):\n    return '{0.gi_frame}'.format(x)\n": "line 2: it runs code",
    "from typing import get_type_hints\n": "line 1: it runs code",
    "g = (x for x in [1])\nb = g.gi_frame.f_builtins\n": "line 2: it reaches g.gi_frame",
    "async def f():\n    pass\ng = f().cr_frame\n": "line 3: it reaches f().cr_frame",
    "try:\n    x\nexcept NameError as e:\n    t = e.with_traceback(None).tb_frame\n": (
        "line 4: it reaches e.with_traceback(None).tb_frame"
    ),
    "import numpy\nx = numpy.datetime64('now')\n": "line 2: it asks for the clock",
    "import torch\nx = torch.get_num_threads()\n": "line 2: it asks for the clock",
    "P: str = 'int'\nclass A:\n    x: P = 1\n": "line 3: it declares a field with a type",
    "class A:\n    save: float\n    def f(self, x):\n        x.save()\n": (
        "line 4: it reads or writes"
    ),
    "x = input()\n": "line 1: it asks for the clock, the threads or the user (input)",
    "class A:\n    x: 'int' = 1\n": "line 2: it declares a field with a type that is not plain",
    "T = 'i' + 'nt'\nclass A:\n    x: T = 1\n": "line 3: it declares a field with a type",
    "int = 'i' + 'nt'\nclass A:\n    x: int = 1\n": "line 3: it declares a field with a type",
    "def f(int):\n    class A:\n        x: int = 1\n": "line 3: it declares a field with a type",
    "class A:\n    x: chr(1) = 1\n": "line 2: it declares a field with a type",
    "A = type('A', (), {})\n": "line 1: it makes a class at run time",
    "import torch\ntorch.x = 'i'\nclass A:\n    x: torch.x = 1\n": (
        "line 4: it declares a field with a type"
    ),
    "class K:\n    upper = 'i'\nclass A:\n    x: K.upper\n": (
        "line 4: it declares a field with a type"
    ),
    "class K:\n    def __class_getitem__(k, x):\n        return x\nclass A:\n    x: K[1]\n": (
        "line 5: it declares a field with a type"
    ),
    "def f(kind):\n    return 'i'\n@f\nclass K:\n    pass\nclass A:\n    x: K\n": (
        "line 7: it declares a field with a type"
    ),
    "def f(kind):\n    return kind\n@f\nclass K:\n    pass\nclass A(K):\n    pass\n": (
        "line 6: it makes a class at run time (A)"
    ),
    "from typing import NamedTuple\nclass A(NamedTuple('B', [('x', 'i')])):\n    pass\n": (
        "line 2: it makes a class at run time (A)"
    ),
    "@repr\nclass K:\n    pass\nclass A:\n    x: K\n": "line 5: it declares a field with a type",
    "from enum import EnumMeta\nclass M(EnumMeta):\n    pass\nclass A(metaclass=M):\n    x: int": (
        "line 4: it makes a class at run time (A)"
    ),
    "x = int\nclass A(repr(x)[0]):\n    pass\n": "line 2: it makes a class at run time (A)",
    "from typing import TypedDict\nB = TypedDict('B', {'x': 'i'})\nclass A(B):\n    pass\n": (
        "line 3: it makes a class at run time (A)"
    ),
}
PLAIN = """
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias
from annotated_types import Gt
from numpy import array, linalg
from torch import trace
import scipy
import torch

__version__ = "1.0"
__author__ = "A. N. Author"

Rate = Annotated[float, Gt(0)]
P: TypeAlias = float

@dataclass(frozen=True)
class Kind:
    pass

Alias = Kind

class A(Alias, torch.nn.Module):
    x: Rate | None = None
    y: ClassVar[tuple[Literal["a", "b"], ...]] = ()
    z: dict[str, Annotated[torch.Tensor, "a word"]]
    k: Kind
    s: scipy.Kind
    p: P
    same = type(x) is type(y)
"""


@pytest.mark.parametrize("text", SOURCES, ids=list(SOURCES.values()))
def test_reading_the_source_names_the_line(text: str) -> None:
    problems, _ = read_source(text)
    assert problems[0].startswith(SOURCES[text])


def test_fields_may_have_any_plain_type() -> None:
    assert read_source(PLAIN) == ([], ["scipy"])


NESTED = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Warm:
    load: float = 1.0

@dataclass(frozen=True)
class Mine:
    warm: Warm = Warm()

    def update(self, released, state, public):
        return released[0] * self.warm.load * public.seed
"""


def test_options_of_an_option_and_of_a_step_may_have_any_name() -> None:
    assert read_source(NESTED) == ([], [])
    assert read_source(NESTED.replace("self.warm.load", "self.warm.save"))[0]


def test_a_variable_may_be_called_input() -> None:
    assert read_source("def scale(input, seed):\n    return input * seed\n") == ([], [])


def test_a_module_that_is_not_followed_is_named() -> None:
    assert read_source("import scipy.signal\n") == ([], ["scipy.signal"])
    nowhere = "from clipnoise.methods.nowhere import Method\n"
    assert read_source(nowhere) == ([], [])  # its import says so


@pytest.mark.parametrize("kind", list(ClipRule.package_kinds()))
def test_a_message_holds_a_clip_rule_of_any_kind(kind: str) -> None:
    from clipnoise.audit.judge.wire import pack, unpack

    rule = parse(ClipRule, {"kind": kind, "per": "layer"})
    clipping = unpack(pack({"clipping": Clipping(0.5, rule=rule)}))["clipping"]
    assert clipping == Clipping(0.5, rule=rule)


HANDED = (
    Component(0.5, 2.0),
    LocalTraining(0.1, 2, 4),
    Public(1.0, 4.0, 10, gradient=torch.ones(2)),
    State(torch.zeros(2), 3, unwritten={"v"}, shapes=((1, 2),), past=(torch.ones(2),)),
    Clipping(None, of=TAKEN["gradients"]()),
)


@pytest.mark.parametrize("value", HANDED, ids=lambda value: type(value).__name__)
def test_a_message_holds_what_a_method_is_handed_and_what_it_returns(value: object) -> None:
    from clipnoise.audit.judge.wire import pack, unpack

    assert repr(unpack(pack([value]))) == repr([value])


@pytest.mark.parametrize("name", ["values", "scale", "another"])
def test_what_is_replaced_in_the_suite_or_added_to_it_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipnoise.audit.judge.worker import changed, snapshot

    modules = (ClippedMean.__module__,)
    before = snapshot(modules)
    assert changed(before, modules) == []
    monkeypatch.setattr(ClippedMean, name, lambda self: 0, raising=False)
    assert changed(before, modules) == [f"{ClippedMean.__module__}.ClippedMean.{name}"]


def test_messages_hold_data_and_no_code() -> None:
    from clipnoise.audit.judge.wire import pack, unpack

    message = {"a": [torch.arange(6.0).reshape(2, 3), None], "b": {"c": torch.tensor(True)}}
    there = unpack(pack(message))
    assert torch.equal(there["a"][0], message["a"][0])
    assert there["b"]["c"].dtype == torch.bool
    for kind in (torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.uint8):
        memory = torch.tensor([[1, 2], [3, 4]]).to(kind)  # as a method may keep it
        again = unpack(pack([memory[:, 1], memory, memory[0, 0], memory[:0]]))
        assert [one.dtype for one in again] == [kind] * 4
        assert torch.equal(again[0], memory[:, 1])
        assert torch.equal(again[1], memory)
        assert (again[2].item(), len(again[3])) == (1, 0)
    with pytest.raises(TypeError, match="neither plain data nor a tensor: Method"):
        pack({"a": object.__new__(Method)})
    with pytest.raises(ValueError, match=r"not a message|Expecting|decode"):
        unpack(b"kept and not refuted")
