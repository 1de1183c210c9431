"""Methods, models and datasets in a user's folder are found, checked and fingerprinted."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import numpy as np
import pytest
from budgets import budget

import clipnoise
from clipnoise.cli import main
from clipnoise.core.state import Public, State
from clipnoise.data.base import Dataset
from clipnoise.errors import UserError
from clipnoise.methods.base import method_class, methods
from clipnoise.models.base import Model
from clipnoise.plugins import own_folder, plugins, use_places
from clipnoise.run.fingerprint import _fingerprint, _read, fingerprint_of
from clipnoise.run.spec import from_mapping

ROOT = Path(__file__).parents[2]

HEAD = """
from dataclasses import dataclass
from typing import ClassVar

from clipnoise.methods.base import *
from clipnoise.methods.base import Clean, OracleMethod
from clipnoise.data.base import Dataset
from clipnoise.models.base import Model
"""
UPDATE = """
def update(self, released, state, public):
    (g,) = released
    state["m"] = 0.9 * state["m"] + g
    return -self.learning_rate * state["m"]
"""


def method(name: str, *lines: str, update: str = UPDATE, decorated: bool = True) -> str:
    """Return the source of a method; what is wrong with it is in the arguments."""
    decorator = "@dataclass(frozen=True, kw_only=True)\n" if decorated else ""
    body = "\n".join([*lines, update]) or "pass"
    return f"{HEAD}\n{decorator}class {name}(PrivateMethod):\n{indent(body, '    ')}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(tmp_path))
    return tmp_path


GOOD = ('id = "mine"', "query = ClippedMean()")


def test_a_class_of_the_folder_is_a_plug_in_of_its_kind(folder: Path) -> None:
    (folder / "mine.py").write_text(method("Mine", *GOOD, "beta: Decay = 0.5"))
    (folder / "test_mine.py").write_text("raise SystemExit")
    assert methods()["mine"].family() == "own"
    assert "mine" not in plugins("clipnoise.models", Model)
    gradients = np.ones((3, 2, 1)) / 2
    constants = {"noise_multiplier": 1, "expected_batch_size": 2, "learning_rate": 1}
    moved = clipnoise.replay(
        "mine", {**constants, "clip_norm": 1}, np.zeros(1), gradients, np.zeros((3, 1))
    )
    np.testing.assert_allclose(np.diff(moved[:, 0]), -0.5 * np.array([1, 1.9, 2.71]))


FAULTS = {
    "no annotation": (method("A", *GOOD, "beta = 0.9"), "class A: beta needs a type, such as beta"),
    "no annotation of an inherited option": (
        method("A", *GOOD, "clip_norm = 0.9"),
        "class A: clip_norm needs a type",
    ),
    "no decorator": (method("A", *GOOD, decorated=False), r"class A: it needs @dataclass\(frozen"),
    "no query": (method("A", 'id = "mine"'), "class A: it has no query"),
    "a query that is a class": (
        method("A", 'id = "mine"', "query = ClippedMean"),
        r"must be a value, such as ClippedMean\(",
    ),
    "no id": (method("MyOwn", "query = ClippedMean()"), "class MyOwn: it needs an id .* 'my-own'"),
    "an id that no path can hold": (
        method("A", 'id = "My own"', "query = ClippedMean()"),
        "class A: it needs an id",
    ),
    "no update": (method("A", *GOOD, update=""), "class A: it has no update"),
    "an update without a value": (
        method("A", *GOOD, update="def update(self, released, state, public):\n    return"),
        "class A: its update returns nothing",
    ),
    "a syntax error": (method("A", *GOOD, "x ="), r":\d+: SyntaxError: invalid syntax"),
    "an error in its body": (method("A", *GOOD, "x = y"), r":\d+: NameError: name 'y'"),
    "an oracle without its update": (
        HEAD + "@dataclass(frozen=True, kw_only=True)\nclass A(OracleMethod):\n"
        "    id = 'mine'\n    query = ClippedMean()\n",
        "class A: it has no oracle_update",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_method_lacks_is_said_with_its_file_and_class(fault: str, folder: Path) -> None:
    source, message = FAULTS[fault]
    (folder / "mine.py").write_text(source)
    with pytest.raises(UserError, match=rf"mine\.py(.|\n)*{message}"):
        methods()


def test_what_a_model_or_a_dataset_lacks_is_said_too(folder: Path) -> None:
    decorator = "@dataclass(frozen=True, kw_only=True)"
    (folder / "mine.py").write_text(
        HEAD + f"{decorator}\nclass A(Model):\n    id = 'a'\n    title = 'A'\n"
        f"{decorator}\nclass B(Dataset):\n    id = 'b'\n    prepare = print\n"
    )
    with pytest.raises(UserError, match=r"class A: it has no accepts; .*takes; .*build"):
        plugins("clipnoise.models", Model)
    with pytest.raises(UserError, match=r"class B: it has no title; .*signature; .*sizes; .*load"):
        plugins("clipnoise.data", Dataset)


def test_a_dataset_lacks_what_its_base_asks_for_and_what_every_dataset_has(folder: Path) -> None:
    (folder / "mine.py").write_text(
        HEAD + "from clipnoise.data.random_split import RandomSplit\n"
        "@dataclass(frozen=True, kw_only=True)\nclass C(RandomSplit):\n    id = 'c'\n"
    )
    lacking = (
        r"it has no rows; .*title; .*licence; .*source; .*preprocessing; .*signature; .*arrays"
    )
    with pytest.raises(UserError, match=f"class C: {lacking}"):
        plugins("clipnoise.data", Dataset)


@pytest.mark.parametrize(
    ("lines", "update", "message"),
    [
        (("rate: Rate = 0.9",), None, "rate: its type 'Rate' is not defined. Import it, and outsi"),
        (
            (),
            "def update(self, released, state):\n    return -released[0]\n",
            r"its update must take \(self, released, state, public\)",
        ),
    ],
)
def test_what_only_a_run_would_find_is_said_when_a_class_is_read(
    lines: tuple[str, ...], update: str | None, message: str, folder: Path
) -> None:
    text = method("A", *GOOD, *lines, **({} if update is None else {"update": update}))
    (folder / "mine.py").write_text(f"from __future__ import annotations\n{text}")
    with pytest.raises(UserError, match=rf"mine\.py: class A: {message}"):
        methods()


def test_a_folder_that_is_not_there_is_named_with_a_method_that_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"unknown method 'mine'.*nowhere, is not there\."):
        method_class("mine")


def test_two_plug_ins_cannot_share_an_id(folder: Path) -> None:
    (folder / "mine.py").write_text(method("A", 'id = "dp-sgd"', "query = ClippedMean()"))
    with pytest.raises(UserError, match=r"mine\.py: class A: its id 'dp-sgd' is that of .*\.py"):
        methods()


def replayed(name: str) -> None:
    settings = {"noise_multiplier": 1, "expected_batch_size": 1, "learning_rate": 1, "clip_norm": 1}
    clipnoise.replay(name, settings, np.zeros(2), np.ones((2, 1, 2)), np.zeros((2, 2)))


def test_a_state_that_is_read_and_never_written_is_an_error(folder: Path) -> None:
    wrong = UPDATE.replace('0.9 * state["m"]', '0.9 * state["mm"]')
    (folder / "mine.py").write_text(method("A", *GOOD, update=wrong))
    with pytest.raises(UserError, match=r"class A: state\['mm'\] is read.*Did you mean 'm'"):
        replayed("mine")


def test_a_state_that_is_changed_in_place_is_written(folder: Path) -> None:
    in_place = """
    def update(self, released, state, public):
        (g,) = released
        return -state["m"].mul_(0.5).add_(g)
    """
    (folder / "mine.py").write_text(method("A", *GOOD, update=dedent(in_place)))
    replayed("mine")


@pytest.mark.parametrize(
    ("value", "found"), [("g if state.step > 1 else None", "NoneType"), ("g[:1]", r"shape \(1,\)")]
)
def test_an_update_of_another_shape_is_an_error(value: str, found: str, folder: Path) -> None:
    update = (
        f"def update(self, released, state, public):\n    (g,) = released\n    return {value}\n"
    )
    (folder / "mine.py").write_text(method("A", *GOOD, update=update))
    with pytest.raises(UserError, match=rf"class A: update must return .*shape \(2,\): {found}"):
        replayed("mine")


def two_folders(path: Path) -> list[Path]:
    folders = [path / "first", path / "second-one"]
    for folder in folders:
        folder.mkdir()
        (folder / "helpers.py").write_text(f"NAME = {folder.name!r}\n")
    return folders


def test_several_folders_have_modules_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, folder in enumerate(two_folders(tmp_path)):
        source = "from .helpers import NAME\n" + method("A", f'id = "mine-{number}"', GOOD[1])
        (folder / "mine.py").write_text(f"{source}    name = property(lambda self: NAME)\n")
    monkeypatch.setenv("CLIPNOISE_PLUGINS", "")
    use_places([str(tmp_path / "first"), str(tmp_path / "second-one")])
    found = methods()
    names = [found[name](learning_rate=1, clip_norm=1).name for name in ("mine-0", "mine-1")]
    assert names == ["first", "second-one"]
    assert own_folder() == tmp_path / "first"


def test_two_folders_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name / "same" for name in "abc"]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setenv("CLIPNOISE_PLUGINS", "\n".join(map(str, folders)))
    with pytest.raises(UserError, match=r"c/same: .*b/same has the same name"):
        methods()


STUDY = """
title: Mine
scales: none
panels:
  one:
    datasets: [digits]
    models: [logistic]
    methods: [{id: mine, learning_rate: 1, clip_norm: 1}]
    epsilons: [1]
    seeds: [1]
    training: {expected_batch_size: 100, steps: 5}
report: [{kind: table}]
"""


@pytest.mark.parametrize("command", ["check", "status"])
def test_folders_are_relative_to_the_configuration_that_names_them(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for path in (project / "methods", elsewhere):
        path.mkdir(parents=True)
    (project / "methods" / "mine.py").write_text(method("Mine", *GOOD))
    (project / "study.yaml").write_text(STUDY)
    (project / "config.yaml").write_text("plugins: methods\n")
    monkeypatch.setenv("CLIPNOISE_PLUGINS", "")
    monkeypatch.chdir(elsewhere)
    words = [str(project / "study.yaml"), "--config", str(project / "config.yaml")]
    assert main([command, *words]) == 0, capsys.readouterr().err
    assert own_folder() == project / "methods"


def test_a_place_that_is_no_folder_and_no_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", "")
    with pytest.raises(UserError, match="plugins: 'no_such_package' is no folder, and no package"):
        use_places(["not-there-yet", "no_such_package"])


def in_python(code: str, path: Path, places: str = "") -> str:
    """Run a line of Python with packages from a folder, and with places of plug-ins."""
    source = os.pathsep.join([str(path), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": source, "CLIPNOISE_PLUGINS": places}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


@pytest.mark.long
def test_a_package_is_named_by_its_dotted_name(tmp_path: Path) -> None:
    folder = tmp_path / "outer" / "inner" / "deep"
    folder.mkdir(parents=True)
    for package in (tmp_path / "outer", tmp_path / "outer" / "inner", folder):
        (package / "__init__.py").write_text("")
    (folder / "helpers.py").write_text("HALF = 0.5\n")
    (folder / "mine.py").write_text(
        "from outer.inner.deep.helpers import HALF\n" + method("A", *GOOD)
    )
    code = FINGERPRINT.replace("clipnoise.own.mine", "outer.inner.deep.mine")
    before = in_python(code, tmp_path, "outer.inner")
    (folder / "helpers.py").write_text("HALF = 0.25\n")
    assert in_python(code, tmp_path, "outer.inner") != before


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed into a folder of its own without a network."""
    folder, copy = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("source") / "it"
    shutil.copytree(ROOT / "examples" / "plugin", copy)
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    settings = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    subprocess.run(
        [sys.executable, "-m", "pip", *words, str(folder), str(copy)], check=True, env=settings
    )
    return folder


@pytest.mark.long
def test_an_installed_package_is_found_by_its_entry_point(installed: Path) -> None:
    code = "import sys; from clipnoise.cli import main; sys.exit(main(['methods']))"
    assert "my-dp-lion " in in_python(code, installed)
    assert "my-dp-lion " not in in_python(code, installed.parent)


@pytest.mark.long
def test_the_method_of_an_installed_package_trains_and_counts_in_the_fingerprint(
    installed: Path, tmp_path: Path
) -> None:
    path = tmp_path / "packages"
    shutil.copytree(installed, path)
    main(["data", "prepare", "digits", "--cache", str(tmp_path)])
    spec: dict[str, Any] = {
        "dataset": "digits",
        "model": "logistic",
        "method": {"id": "my-dp-lion", "learning_rate": 0.01, "clip_norm": 1},
        "privacy": {"epsilon": 3, "delta": 1e-5},
        "training": {"expected_batch_size": 64, "steps": 3},
        "seed": 0,
    }
    sigma = tmp_path / "sigma.json"
    words = ["train", "--spec", json.dumps(spec), "--cache", str(tmp_path), "--device", "cpu"]
    words += ["--results", str(tmp_path / "results"), "--calibration", str(sigma)]
    calibration = budget(from_mapping({**spec, "method": {**spec["method"], "id": "dp-sgd"}}))
    assert calibration is not None
    calibration.write(sigma)
    in_python(f"from clipnoise.cli import main; assert main({words}) == 0", path)
    (file,) = (tmp_path / "results").rglob("summary.json")
    summary = json.loads(file.read_text())
    assert summary["status"] == "completed"
    assert summary["versions"]["dp-lion-plugin"] == "0.1.0"
    code = FINGERPRINT.replace("clipnoise.own.mine", "dp_lion_plugin.dp_lion")
    before = in_python(code, path)
    file = path / "dp_lion_plugin" / "dp_lion.py"
    file.write_text(file.read_text().replace("direction.sign()", "direction"))
    assert in_python(code, path) != before


@pytest.mark.long
def test_a_warm_process_leaves_it_to_the_runs_to_import_the_users_code(
    installed: Path, folder: Path
) -> None:
    (folder / "mine.py").write_text(method("Mine", *GOOD))
    spec = ROOT / "docs" / "run.yaml"
    code = f"""
import os, sys
from pathlib import Path
from clipnoise.cli.warm import prepare_training
from clipnoise.run.spec import read_spec
prepare_training(["--spec", {str(spec)!r}], Path())
print({{"clipnoise.own.mine", "dp_lion_plugin"}} & set(sys.modules))
os.environ["CLIPNOISE_PLUGINS"] = {str(folder)!r}
read_spec(Path({str(spec)!r}))  # as a run does
print(len({{"clipnoise.own.mine", "dp_lion_plugin"}} & set(sys.modules)))
"""
    assert in_python(code, installed, str(folder)) == "set()\n2\n"


def test_the_example_is_the_complete_method_of_the_documentation() -> None:
    source = (ROOT / "examples" / "plugin" / "dp_lion_plugin" / "dp_lion.py").read_text()
    assert f"```python\n{source}```" in (ROOT / "docs" / "own.md").read_text()


FINGERPRINT = (
    "from clipnoise.run.fingerprint import fingerprint_of; "
    "from clipnoise.methods.base import methods; methods(); "
    "print(fingerprint_of(['clipnoise.own.mine']))"
)


def fingerprint(folder: Path) -> str:
    environment = {**os.environ, "CLIPNOISE_PLUGINS": str(folder)}
    words = [sys.executable, "-c", FINGERPRINT]
    return subprocess.check_output(words, env=environment, text=True)


@pytest.mark.long
def test_the_fingerprint_covers_the_file_and_what_it_imports_from_the_folder(folder: Path) -> None:
    (folder / "helpers.py").write_text("def half(x: float) -> float:\n    return x / 2\n")
    (folder / "other.py").write_text("")
    (folder / "mine.py").write_text("from .helpers import half\n" + method("A", *GOOD))
    before = fingerprint(folder)
    (folder / "other.py").write_text("x = 1\n")
    (folder / "helpers.py").write_text("# halves\ndef half(x: float) -> float:\n    return x / 2\n")
    assert fingerprint(folder) == before
    (folder / "helpers.py").write_text("def half(x: float) -> float:\n    return x / 3\n")
    changed = fingerprint(folder)
    assert changed != before
    (folder / "mine.py").write_text(
        "from .helpers import half\n" + method("A", *GOOD, "b: int = 1")
    )
    assert fingerprint(folder) not in (before, changed)


@pytest.mark.quick(config=["plugins: elsewhere", "{"])
@pytest.mark.parametrize(
    "config", ["plugins: elsewhere", "scale: paper", "plugins: [a]", "[a]", "{"]
)
def test_the_program_reads_the_folder_from_the_configuration(config: str, tmp_path: Path) -> None:
    """Another program's config.yaml names no folder, and makes nothing fail."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(method("Mine", *GOOD))
    (tmp_path / "config.yaml").write_text(config)
    environment = {name: text for name, text in os.environ.items() if name != "CLIPNOISE_PLUGINS"}
    code = "import sys; from clipnoise.cli import main; sys.exit(main(['methods']))"
    words = [sys.executable, "-c", code]
    shown = subprocess.check_output(words, cwd=tmp_path, env=environment, text=True)
    assert ("mine " in shown) == ("elsewhere" in config)


@pytest.mark.parametrize("code", ["sys.exit()", "sys.exit(0)", "exit(3)", "raise SystemExit"])
def test_a_file_that_ends_the_program_is_named_and_nothing_counts_as_done(
    code: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(f"import sys\n\n{code}\n")
    assert main(["methods"]) == 2
    said = capsys.readouterr()
    assert f"clipnoise methods: {folder / 'mine.py'}:3: SystemExit" in said.err
    assert said.out == ""


def test_a_class_that_ends_the_program_while_it_is_asked_makes_no_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = "def __post_init__(self) -> None:\n    raise SystemExit(0)"
    (folder / "mine.py").write_text(method("Mine", *GOOD, ending))
    panel = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1], "epsilons": [1]}
    panel |= {"methods": [{"id": "mine", "learning_rate": 1, "clip_norm": 1}]}
    panel |= {"training": {"expected_batch_size": 50, "steps": 2}}
    study = {"title": "Mine", "panels": {"main": panel}, "report": []}
    monkeypatch.chdir(folder)
    (folder / "study.yaml").write_text(json.dumps(study))
    (folder / "config.yaml").write_text("studies: [study.yaml]\nplugins: .\n")
    assert main(["check"]) == 1
    assert "has ended the program" in capsys.readouterr().err


def test_what_a_file_prints_goes_to_standard_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(f"{method('Mine', *GOOD)}\nprint('hello')\n")
    assert "mine" in methods()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


def test_a_slow_file_is_named_while_it_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clipnoise.plugins.SLOW_SECONDS", 0.01)
    (folder / "mine.py").write_text(f"import time\n{method('Mine', *GOOD)}\ntime.sleep(0.5)\n")
    assert "mine" in methods()
    assert f"{folder / 'mine.py'} is being imported, for more than" in capsys.readouterr().err


def test_an_id_that_is_too_long_for_a_folder_is_refused(folder: Path) -> None:
    (folder / "mine.py").write_text(method("Mine", f"id = '{'m' * 300}'", "query = ClippedMean()"))
    with pytest.raises(UserError, match="its id has 300 characters, at most 80 are allowed"):
        methods()


FACTOR = "FACTOR = {}\n"


def test_an_edit_that_keeps_size_and_time_of_a_file_is_imported(folder: Path) -> None:
    """By size and time Python takes its own compiled copy for current, as after a quick undo."""
    text = method("Mine", *GOOD)
    code = (
        "from clipnoise.methods.base import methods; "
        "import sys; methods(); print(sys.modules['clipnoise.own.mine'].FACTOR)"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    found = []
    for factor in (1.0, 3.0):
        (folder / "mine.py").write_text(FACTOR.format(factor) + text)
        os.utime(folder / "mine.py", (10**9, 10**9))
        words = [sys.executable, "-c", code]
        found.append(float(subprocess.check_output(words, env=environment, text=True)))
    assert found == [1.0, 3.0]


@pytest.mark.long
def test_the_fingerprint_is_that_of_the_code_that_was_imported(folder: Path) -> None:
    """A file that is edited while a run trains has no part in that run."""
    text = method("Mine", *GOOD)
    (folder / "helper.py").write_text(FACTOR.format(1.0))
    (folder / "mine.py").write_text("from .helper import FACTOR\n" + text)
    before = fingerprint(folder)
    assert "mine" in methods()
    (folder / "helper.py").write_text(FACTOR.format(3.0))
    _read.cache_clear()
    _fingerprint.cache_clear()
    assert fingerprint_of(["clipnoise.own.mine"]) == before.strip()
    assert fingerprint(folder) != before


OWN_FILES = (
    "from clipnoise.run.fingerprint import own_files; "
    "from clipnoise.run.spec import from_mapping; "
    "run = from_mapping({'dataset': 'digits', 'model': 'logistic', 'seed': 1, "
    "'method': {'id': 'mine', 'learning_rate': 1, 'clip_norm': 1}, 'privacy': {'epsilon': 1}, "
    "'training': {'expected_batch_size': 50, 'steps': 1}}); "
    "print(own_files(run))"
)


@pytest.mark.long
def test_the_users_files_behind_a_run_are_named_with_their_digests(folder: Path) -> None:
    (folder / "helper.py").write_text(FACTOR.format(1.0))
    (folder / "other.py").write_text("")
    (folder / "mine.py").write_text("from .helper import FACTOR\n" + method("Mine", *GOOD))
    environment = {**os.environ, "CLIPNOISE_PLUGINS": str(folder)}
    printed = subprocess.check_output([sys.executable, "-c", OWN_FILES], env=environment, text=True)
    assert ast.literal_eval(printed) == {
        f"{folder.name}/{name}": hashlib.sha256((folder / name).read_bytes()).hexdigest()[:12]
        for name in ("helper.py", "mine.py")
    }


INTERNAL = {  # of the suite's own code: copies, checkpoints, checks, and what `points` is given
    *("copy", "get_state", "set_state", "require_written", "saved_parameters", "unwritten", "past"),
}


@pytest.mark.parametrize(("name", "kind"), [("state", State), ("public", Public)])
def test_the_page_says_all_that_an_update_may_read(name: str, kind: type[Any]) -> None:
    page = (ROOT / "docs" / "own.md").read_text()
    found = re.findall(rf"^\| `{name}\.(\w+)(?:\((.*?)\))?` \|", page, re.M)
    own = {one.name for one in dataclasses.fields(kind)}
    own |= {attribute for attribute in dir(kind) if not attribute.startswith("_")}
    assert {attribute for attribute, _ in found} == own - INTERNAL
    for attribute, arguments in found:
        member = inspect.getattr_static(kind, attribute, None)
        taken = list(inspect.signature(member).parameters)[1:] if callable(member) else []
        assert arguments.split(", ") == (taken or [""]), attribute
    assert f"`{name}[name]`" in page or name == "public"
