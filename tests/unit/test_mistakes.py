"""What is wrong in a study or in config.yaml is said in one line, before anything trains."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.cli import main
from clipnoise.errors import UserError, or_exit
from clipnoise.files import require_writable
from clipnoise.methods.base import method_class

SGD = {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1}
PANEL: dict[str, Any] = {
    "datasets": ["digits"],
    "models": ["logistic"],
    "epsilons": [1, 8],
    "seeds": [1, 2],
    "privacy": {"delta": 1e-5},
    "training": {"expected_batch_size": 100, "steps": 5},
    "methods": [SGD],
}
TUNED = {"id": "dp-sgd", "clip_norm": 1, "tune": {"grid": {"learning_rate": [1]}, "seeds": [7]}}


def public(source: str) -> dict[str, Any]:
    given = {"id": "adadps-side", "learning_rate": 1, "clip_norm": 1}
    return {**given, "side_information": {"source": source}}


def override(**values: Any) -> dict[str, Any]:
    return {"methods": [{**SGD, "overrides": [{**values, "learning_rate": 2}]}]}


def tune(**values: Any) -> dict[str, Any]:
    return {"methods": [{**TUNED, "tune": {**TUNED["tune"], **values}}]}


def own(**values: Any) -> dict[str, Any]:
    return {"datasets": [{"id": "own", **values}]}


# What a panel says instead → what is said of it, after the file and `panels.main.`.
PANELS: list[tuple[dict[str, Any], str]] = [
    ({"seeds": [1, 1]}, "seeds: 1 is given twice."),
    ({"epsilons": [8, 8.0]}, "epsilons: 8 is given twice."),
    ({"datasets": ["digits", "digits"]}, "datasets: digits is given twice; tell them apart by"),
    ({"methods": [SGD, {**SGD, "clip_norm": 2}]}, "methods: dp-sgd is given twice; tell them"),
    (
        {"privacy": {"noise_multiplier": 1}, "epsilons": [1]},
        "epsilons: privacy.noise_multiplier is given, too. Give one of them",
    ),
    (override(), "methods.0.overrides.0: names none of"),
    (
        {"methods": [{**SGD, "label": "a"}, {"id": "dp-adam", "label": "a"}]},
        "methods: a is given twice; tell them apart by `label`.",
    ),
    ({"seeds": []}, "seeds: give at least one."),
    ({"methods": []}, "methods: give at least one."),
    ({"datasets": []}, "datasets: give at least one."),
    ({"models": []}, "models: give at least one."),
    ({"epsilons": []}, "methods.0: a method that adds noise needs `epsilons` in its panel."),
    ({"seeds": 3}, "seeds: input should be a list, got 3."),
    ({"seeds": [-1]}, "seeds.0: input should be greater than or equal to 0, got -1."),
    ({"methods": "dp-sgd"}, "methods: input should be a list, got 'dp-sgd'."),
    ({"methods": [["dp-sgd"]]}, "methods.0: input should be text or a mapping, got ['dp-sgd']."),
    ({"training": [1]}, "training: input should be a mapping, got [1]."),
    ({"seed": [1]}, "seed: unknown key. Did you mean 'seeds'? Allowed: "),
    ({"datasets": ["digit"]}, "datasets.0.id: unknown dataset 'digit'. Did you mean 'digits'?"),
    ({"datasets": [{"label": "x"}]}, "datasets.0: expected a mapping with an id, got {}."),
    (
        {"datasets": ["digits", {"id": "digits", "label": "b", "split_sed": 1}]},
        "datasets.1.split_sed: unknown key. Did you mean 'split_seed'? Allowed: ",
    ),
    ({"models": ["logistik"]}, "models.0.id: unknown model 'logistik'. Did you mean 'logistic'?"),
    ({"methods": [{"id": "dp-sdg"}]}, "methods.0.id: unknown method 'dp-sdg'. Did you mean"),
    ({"methods": [{"clip_norm": 1}]}, "methods.0.id: required, but not given."),
    ({"methods": [{**SGD, "clip_nrm": 1}]}, "methods.0.clip_nrm: unknown key. Did you mean 'clip"),
    (
        {"methods": [{"id": "dp-sgd", "learning_rate": 1, "clip_nrm": 1}]},
        "methods.0.clip_nrm: unknown key. Did you mean 'clip_norm'? Allowed: ",
    ),
    ({"methods": [{**SGD, "clip_norm": -1}]}, "methods.0.clip_norm: input should be greater than"),
    (
        {"methods": [{**SGD, "clip_norm": "x"}]},
        "methods.0.clip_norm: input should be a number or a mapping, got",
    ),
    (override(epsilon=4), "methods.0.overrides.0.epsilon: unknown epsilon of this panel '4'. Allo"),
    (override(model="cnn"), "methods.0.overrides.0.model: unknown model of this panel 'cnn'."),
    (override(dataset="digit"), "methods.0.overrides.0.dataset: unknown dataset of this panel"),
    (
        {"methods": [{**SGD, "overrides": {"epsilon": 1}}]},
        "methods.0.overrides: expected a list of mappings, got {'epsilon': 1}.",
    ),
    (
        {"models": ["lstm"]},
        "models.0.id: lstm takes sequences of tokens to classify, but the dataset's examples are "
        "image of shape (1, 8, 8) for classification. Models that take them: ",
    ),
    (
        {"methods": [{"id": "adadps-rmsprop", "learning_rate": 1, "clip_norm": 1}]},
        "datasets.0.public_examples: adadps-rmsprop needs public examples, and digits sets none",
    ),
    ({"methods": [public("public-gradients")]}, "datasets.0.public_examples: adadps-side needs"),
    ({"methods": [public("tf-idff")]}, "methods.0.side_information.source: 'tf-idff'. Did you"),
    (
        {"training": {"expected_batch_size": 10000, "steps": 5}},
        "training.expected_batch_size: 10000 is more than the 1300 private examples of digits.",
    ),
    ({"training": {"expected_batch_size": 10}}, "training: give exactly one of epochs and steps."),
    ({"privacy": {"accountant": "rpd"}}, "privacy.accountant: input should be 'rdp', 'prv', 'pld'"),
    ({"privacy": {"delta": "1/m"}}, "privacy.delta: input should be a number or '1/n', got '1/m'."),
    ({"privacy": {"delta": 1.5}}, "privacy: delta must be below 1."),
    (tune(grid={}), "methods.0.tune.grid: give at least one hyper-parameter, each with its candi"),
    (
        tune(grid={"learning_rate": [1, 2, 1]}),
        "methods.0.tune: grid.learning_rate: 1 is given",
    ),
    (
        {"methods": [{**TUNED, "learning_rate": 3}]},
        "methods.0.learning_rate: is tuned, too, so that 3 would be ignored. Give one of them.",
    ),
    (
        {"methods": [{**TUNED, "overrides": [{"epsilon": 8, "learning_rate": 3}]}]},
        "methods.0.overrides.0.learning_rate: is tuned, too, so that 3 would be ignored.",
    ),
    (
        {"methods": [{**SGD, "overrides": [{"epsilons": 8, "learning_rate": 2}]}]},
        "methods.0.overrides.0: names none of dataset, model, epsilon, so it would hold everywhere."
        " Give the value to the method itself. Did you mean 'epsilon'?",
    ),
    (
        {
            "methods": [
                {**SGD, "label": "{beta}", "sweep": {"beta": [0.1, 0.2]}},
                {**SGD, "lable": "x"},
            ]
        },
        "methods.0.beta: unknown key.",
    ),
    (
        {"methods": [{**SGD, "label": "dp-adam"}]},
        "methods.0.label: dp-adam is the id of another method, for which a reader would",
    ),
    ({"methods": [{**SGD, "label": ""}]}, "methods: a label is empty."),
    (
        {"training": {"expected_batch_size": 50, "epochs": 0.01}},
        "training.epochs: 0.01 epochs of 1,300 with expected batches of 50 are no step: 0.0385 ",
    ),
    (tune(ranges={"gamma": [0, 1]}, trials=2), "methods.0.tune: ranges.gamma: give a smallest and"),
    (
        {"methods": [{**TUNED, "label": "η {learning_rat}", "sweep": {"learning_rate": [1, 2]}}]},
        "methods.0.label: unknown hyper-parameter of `sweep` 'learning_rat'. Did you mean",
    ),
    ({"hyperparameters": {"dp-sdg": {}}}, "hyperparameters: unknown method 'dp-sdg'. Did you mean"),
    (
        {"methods": [{**SGD, "learning_rate": 3, "sweep": {"learning_rate": [1, 2]}}]},
        "methods.0.learning_rate: is swept, too. Give one of them.",
    ),
    (
        {"methods": [{**SGD, "sweep": {"beta": []}}]},
        "methods.0.sweep.beta: give at least one value.",
    ),
    (
        {"methods": [{**SGD, "overrides": [{"epsilon": 8}]}]},
        "methods.0.overrides.0: gives no value.",
    ),
    ({"methods": [{**SGD, "lable": "x"}]}, "methods.0.lable: unknown key. Did you mean 'label'?"),
    ({"methods": [{**SGD, "tun": {}}]}, "methods.0.tun: unknown key. Did you mean 'tune'? Allowe"),
    ({"models": [{"id": "logistic", "lable": 1}]}, "models.0.lable: unknown key. Did you mean 'la"),
    ({"tuning": {"sedes": [1]}}, "tuning.sedes: unknown key. Did you mean 'seeds'? Allowed: "),
    (
        {"training": {"batch_size": 100, "steps": 5}},
        "training.batch_size: unknown key. Did you mean 'expected_batch_size'?",
    ),
    (
        {"privacy": {"delta": 1e-5, "largest_batch": 200}},
        "privacy.largest_batch: required for the sampler 'truncated-poisson' and not allowed",
    ),
    (tune(seeds=[]), "methods.0.tune.seeds: give at least one."),
    (tune(seeds=[7, 8, 7]), "methods.0.tune.seeds: 7 is given twice."),
    (
        tune(grid={"id": ["dp-sgd", "dp-adam"]}),
        "methods.0.tune.id: is no hyper-parameter; a search",
    ),
    (
        {"methods": [{**SGD, "overrides": [{"epsilon": 8, "id": "nope"}]}]},
        "methods.0.overrides.0.id: an override changes hyper-parameters of its method; give",
    ),
    (tune(seeds=[1]), "methods.0.tune.seeds: 1 are also reported. Tune on seeds other than those"),
    (own(kind="image", shape=[3]), "datasets.0: shape must have 3 numbers for image, got (3,)."),
]

# The same of the whole study file, after the file.
STUDIES: list[tuple[dict[str, Any], str]] = [
    (
        {"report": [{"kind": "tabel", "panels": "main"}]},
        "report.0.kind: 'tabel'. Did you mean 'table'? Allowed: ",
    ),
    (
        {"report": [{"kind": "moments"}]},
        "report.0: shows diagnostics, which no panel of it records: give one `training: {diagn",
    ),
    (
        {"report": [{"kind": "table", "panels": "mian"}]},
        "report.0: the report shows panel 'mian', ",
    ),
    (
        {"report": [{"kind": "table", "panels": "main", "published": "mine"}]},
        "report.published: unknown published t",
    ),
    ({"scales": {"smal": {"seeds": 1}}}, "scales.smal: unknown scale. Did you mean 'small'? All"),
    (
        {"scales": {"smoke": {"methods": {"dp-sdg": {"learning_rate": 3}}}}},
        "scales.smoke.methods: unknown method of this study 'dp-sdg'. Did you mean 'dp-sgd'?",
    ),
    (
        {"scales": {"smoke": {"datasets": {"mnist": {"id": "digits"}}}}},
        "scales.smoke.datasets: unknown dataset of this study 'mnist'. Allowed:",
    ),
    ({"panels": {}}, "give exactly one of panels and shares."),
    ({"titel": "x"}, "titel: unknown key. Did you mean 'title'? Allowed: "),
    (
        {"claims": [{"text": "", "source": "", "method": "dp-sdg", "between": [0.5, None]}]},
        "claims.0.method: unknown method 'dp-sdg'. Did you mean 'dp-sgd'? Allowed: dp-sgd.",
    ),
]

# config.yaml → what is said of it, after its name.
CONFIGS: list[tuple[str, str]] = [
    ("studies: []", "studies: give at least one."),
    ("studies: mine", "studies: input should be a list, got 'mine'."),
    ("studies: [mine, mine]", "studies: mine is given twice."),
    ("studies: [mine]\nscale: paper\nstudies: [mine]", "not valid YAML: studies: given twice, in "),
    ("studies: [mine", "not valid YAML: line 1, column 15: expected ',' or ']', but got '<stream"),
    ("- mine", "expected a mapping at the top, got list."),
    ("scale: smal", "scale: input should be 'paper', 'small' or 'smoke', got 'smal'."),
    ("resources: {thread: 2}", "resources.thread: unknown key. Did you mean 'threads'? Allowed: "),
    ("resources: 3", "resources: input should be a mapping, got 3."),
    ("results: ''", "results: a path may not be empty"),
    (
        "studies: [mine]\nresults: file/results",
        "results: file/results: cannot be written (Not a directory).",
    ),
]


def write(folder: Path, panel: Mapping[str, Any] | None = None, **study: Any) -> Path:
    """Write a project with one study, sound except for what is given; return the study's file."""
    values = {
        "title": "Mine",
        "panels": {"main": {**copy.deepcopy(PANEL), **(panel or {})}},
        "report": [{"kind": "table", "panels": "main"}],
        **study,
    }
    path = folder / "workflow" / "studies" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(values))
    (folder / "config.yaml").write_text("studies: [mine]\n")
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `clipnoise check` says of a wrong project: one line, and nothing is written."""
    before = sorted(Path().rglob("*"))
    assert main(["check"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert sorted(Path().rglob("*")) == before
    (line,) = shown.err.splitlines()
    assert ": :" not in line
    return line.removeprefix("clipnoise check: ")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("panel", "message"), PANELS, ids=[message[:40] for _, message in PANELS])
def test_a_mistake_in_a_panel_is_said_in_one_line(
    panel: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, panel)
    assert said(capsys).startswith(f"workflow/studies/mine.yaml: panels.main.{message}")


@pytest.mark.parametrize(("study", "message"), STUDIES, ids=[text[:40] for _, text in STUDIES])
def test_a_mistake_in_a_study_is_said_in_one_line(
    study: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, **study)
    assert said(capsys).startswith(f"workflow/studies/mine.yaml: {message}")


@pytest.mark.parametrize(("config", "message"), CONFIGS, ids=[text[:40] for _, text in CONFIGS])
def test_a_mistake_in_the_configuration_is_said_in_one_line(
    config: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "config.yaml").write_text(config)
    assert said(capsys).startswith(f"config.yaml: {message}")


@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "table"])
def test_what_a_report_could_not_show_is_named_before_any_run(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"pld": {"suffix": ""}, "rdp": {"privacy": {"accountant": "rdp"}}}
    path = write(tmp_path, {"axes": {"accountant": options}, "methods": [SGD]})
    study = yaml.safe_load(path.read_text())
    item = {"kind": kind, "panels": "main", "together": True}
    study["report"] = [item]
    path.write_text(yaml.safe_dump(study))
    message = "workflow/studies/mine.yaml: report: panel 'main': two "
    assert said(capsys).startswith(message)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("resnet18x", "model.name: timm has no 'resnet18x'. Did you mean 'resnet18"),
        ("test_resnet", "model: conv1.1 is a BatchNorm2d: its statistics mix the examples"),
    ],
)
def test_a_network_of_a_library_that_no_run_could_train_is_named_before_any_run(
    network: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"models": [{"id": "timm", "name": network}]})
    assert said(capsys).startswith(f"workflow/studies/mine.yaml: {message}")


def test_without_privacy_a_network_may_mix_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = {"methods": [{"id": "sgd", "learning_rate": 1}], "epsilons": None}
    write(tmp_path, {**only, "models": [{"id": "timm", "name": "test_resnet"}]})
    assert main(["check"]) == 0


def test_a_key_given_twice_in_a_study_is_located(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("    seeds:\n", "    models: [lstm]\n    seeds:\n"))
    assert "mine.yaml: not valid YAML: panels.main.models: given twice, in lines " in said(capsys)


@pytest.mark.parametrize(
    ("panel", "remark"),
    [
        ({"privacy": {"delta": 0.001}}, "δ = 0.001 is above 1/n (n = 1,300 examples of digits): "),
        ({"privacy": {}}, "δ = 0.00077 = 1/n (n = 1,300 examples of digits): publishing one "),
        ({"epsilons": [1, 1e6]}, "ε = 1e+06: above 10 the guarantee is weak; "),
        (
            {"privacy": {"delta": 1e-5, "sampler": "shuffled"}},
            "panel main: the ε of dp-sgd is nominal: ",
        ),
        (
            {"privacy": {"delta": 1e-5, "trials": {"mean": 5}}},
            "panel main: σ of dp-sgd pays for a search of negative-binomial of shape 1, 5 expected "
            "elsewhere, because privacy.trials is given and nothing is tuned here.",
        ),
        ({"seeds": [4]}, "panel main: one seed, so its results have no spread and no interval."),
        (
            {"title": "方法 ε"},
            "'方法 ε': the fonts of reports have no 方法, and show boxes instead.",
        ),
    ],
)
def test_what_is_allowed_but_weak_is_a_remark(
    panel: dict[str, Any], remark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, panel)
    assert main(["check"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "remark: " in line]
    assert line.startswith(f"  remark: {remark}")


def test_a_sound_study_is_summarised_without_writing_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"methods": [{"id": "sgd", "learning_rate": 1}, SGD, {**TUNED, "label": "b"}]})
    before = sorted(tmp_path.rglob("*"))
    assert main(["check", "mine"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine: Mine (workflow/studies/mine.yaml)",
        "  panel  runs  datasets  models  methods  ε     seeds",
        "  main     10         1       1        3  1, 8      2",
        "  runs: sgd 2, dp-sgd 4, b 4, tuning 2",
        "  jobs: prepare 1, calibrate 2, train 12, select 2, collect 1, table 1, report 1, track 1",
        "  12 of 12 runs to train, time unknown until runs have ended",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_time_that_the_author_measured_is_shared_by_the_cores(tmp_path: Path) -> None:
    from clipnoise.studies.status import outlook
    from clipnoise.studies.study import load_study

    study = load_study(write(tmp_path, core_minutes=30))
    words = "4 of 4 runs to train, about 10 min on 3 cores, as its author measured"
    assert outlook(study, tmp_path / "results", cores=3) == words


def test_studies_whose_time_is_unknown_share_a_line(tmp_path: Path) -> None:
    from clipnoise.studies.status import outlooks
    from clipnoise.studies.study import load_study

    known = load_study(write(tmp_path / "known", core_minutes=30))
    unknown = load_study(write(tmp_path / "unknown"))
    first, second = (replace(unknown, name=name) for name in ("first", "second"))
    time = "mine: 4 of 4 runs to train, about 30 min on one core, as its author measured"
    one = "first: 4 of 4 runs to train, time unknown until runs have ended"
    assert list(outlooks([known, first], tmp_path)) == [time, one]
    several = "first and 1 more: time unknown until runs have ended"
    assert list(outlooks([first, known, second], tmp_path)) == [time, several]


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("a: wrong."), 2), (KeyboardInterrupt(), 130)]
)
def test_planning_ends_in_one_line_and_a_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def step() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        or_exit(step)
    assert ended.value.code == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "clipnoise: a: wrong." if status == 2 else "clipnoise: stopped before the first job."
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_somebody_else_is_refused_and_one_below_a_writable_one_is_not(
    tmp_path: Path,
) -> None:
    require_writable(tmp_path / "not" / "there" / "yet")
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o555)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match=r"results: cannot be written \(Permission denied\)"):
            require_writable(tmp_path / "results")
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("adam-dp", "dp-adam"),
        ("dpadam", "dp-adam"),
        ("dp-sdg", "dp-sgd"),
        ("adamm", "adam"),
        ("sgdd", "sgd"),
        ("dp2-rmsprp", "dp2-rmsprop"),
    ],
)
def test_no_method_without_privacy_is_suggested_for_the_name_of_a_private_one(
    name: str, nearest: str
) -> None:
    with pytest.raises(UserError, match=rf"unknown method '{name}'\. Did you mean '{nearest}'"):
        method_class(name)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nn.Tanh()", "nn.BatchNorm1d(self.width)", "its statistics mix the examples of a batch"),
        ("self.width, signature.outputs", "self.width, 1", "it returns (3, 1), not (3, 10)."),
        ("math.prod(signature.shape)", "3", "on inputs of shape (3, 1, 8, 8) it fails: RuntimeErr"),
    ],
)
def test_a_network_in_a_folder_of_plug_ins_is_built_and_tried(
    old: str,
    new: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path, {"models": ["my-net"]})
    config = tmp_path / "config.yaml"
    config.write_text("studies: [mine]\nplugins: plugins\n")
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(tmp_path / "plugins"))
    assert main(["new", "model", "my-net"]) == 0
    assert main(["check"]) == 0
    capsys.readouterr()
    config.write_text("studies: [mine]\nplugins: changed\n")
    text = (tmp_path / "plugins" / "my_net.py").read_text()
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed" / "my_net.py").write_text(text.replace(old, new))
    assert words in said(capsys)
