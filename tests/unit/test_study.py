"""Studies expand into their runs, share runs, and name what is wrong."""

from __future__ import annotations

import json
import math
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.files import load_yaml
from clipnoise.studies.config import Config
from clipnoise.studies.file import SHARED_FILE
from clipnoise.studies.placement import compared
from clipnoise.studies.plan import Plan
from clipnoise.studies.schema import schemas
from clipnoise.studies.study import load_study

ROOT = Path(__file__).parents[2]
SCALES = sorted((ROOT / "workflow" / "scales").glob("*.yaml"))
FILES = sorted((ROOT / "workflow" / "studies").rglob("*.yaml"))
STUDIES = [path for path in FILES if path.name != SHARED_FILE]
LONGER = {"expected_batch_size": 100, "steps": 50}


def study(tmp_path: Path, name: str = "mine", **changes: Any) -> Path:
    panel = {
        "datasets": ["digits"],
        "models": ["logistic", "cnn-small"],
        "epsilons": [1, 8],
        "seeds": [1, 2, 3],
        "methods": [
            {"id": "sgd", "learning_rate": 0.5},
            {
                "id": "dp-sgd",
                "label": "ours",
                "learning_rate": 1,
                "clip_norm": 1,
                "overrides": [{"model": "cnn-small", "epsilon": 8, "learning_rate": 7}],
            },
        ],
        "training": {"expected_batch_size": 100, "steps": 5},
        **changes,
    }
    values = {
        "title": "Mine",
        "panels": {"one": panel},
        "report": [{"kind": "table", "panels": "one"}],
    }
    path = tmp_path / "studies" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_grid_is_datasets_by_models_by_methods_by_epsilons_by_seeds(tmp_path: Path) -> None:
    runs = load_study(study(tmp_path)).runs
    assert len(runs) == 2 * (1 + 2) * 3  # a method without noise runs once per seed
    assert {run.label for run in runs} == {"sgd", "ours"}


def test_an_override_applies_exactly_where_it_matches(tmp_path: Path) -> None:
    changed = {
        (run.spec.model.id, run.spec.budget_label)
        for run in load_study(study(tmp_path)).runs
        if getattr(run.spec.method, "learning_rate", None) == 7
    }
    assert changed == {("cnn-small", "eps=8")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, "panels.one.seed: unknown key. Did you mean 'seeds'?"),
        ({"methods": [{"learning_rate": 1}]}, "panels.one.methods.0.id: required"),
        ({"methods": [{"id": "dp-addam"}]}, "Did you mean 'dp-adam'?"),
        ({"epsilons": []}, "needs `epsilons`"),
        ({"epsilons": [0]}, "panels.one.epsilons.0: input should be greater than 0, got 0"),
        ({"training": {"expected_batchsize": 3, "steps": 1}}, "Did you mean 'expected_batch_size'"),
        (
            {"privacy": {"epsilon": 2}},
            "panels.one.privacy: give the targets of a panel in `epsilons`",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_names_the_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = study(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        load_study(path).runs  # noqa: B018
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_report_of_a_panel_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = study(tmp_path)
    path.write_text(path.read_text().replace("panels: one", "panels: two"))
    with pytest.raises(UserError, match="shows panel 'two', which is not among the panels one"):
        load_study(path)


def test_two_studies_share_the_runs_they_both_need(tmp_path: Path) -> None:
    first, second = study(tmp_path, "first"), study(tmp_path, "second", seeds=[3, 4])
    plan = Plan.from_values({"studies": [str(first), str(second)]}, tmp_path / "studies")
    one, two = set(plan.results("first")), set(plan.results("second"))
    assert len(one & two) == 6
    assert len(one | two) == 18 + 12 - 6


def test_paths_in_a_configuration_are_beside_it_and_those_of_a_command_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (table := tmp_path / "theirs.csv").touch()
    path = study(tmp_path)
    shown = {"kind": "table", "panels": "one", "published": "theirs.csv"}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "report": [shown]}))
    config = tmp_path / "config.yaml"
    config.write_text("studies: [studies/mine.yaml]\nresults: r\nreports: p\ncache: c\n")
    monkeypatch.chdir(path.parent)
    for words in ([], ["mine.yaml"]):
        assert main(["check", *words, "--config", "../config.yaml"]) == 0
        assert "mine: Mine" in capsys.readouterr().out
    table.unlink()
    assert main(["check", "--config", "../config.yaml"]) == 2
    assert "report.published: ../theirs.csv: no such file" in capsys.readouterr().err


def test_a_folder_without_studies_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown study .mine.: .*studies has no study files"):
        Plan.from_values({"studies": ["mine"]}, tmp_path / "studies")


def test_runs_with_one_budget_share_one_calibration(tmp_path: Path) -> None:
    path = study(tmp_path)
    plan = Plan.from_values({"studies": [str(path)]}, tmp_path / "studies")
    runs = plan.study("mine").runs
    files = {file for run in runs for file in plan.inputs(run.spec.hash)["calibration"]}
    assert len(files) == 2
    (key, _) = (Path(file).stem for file in sorted(files))
    assert "--epsilon" in plan.calibration(key).options()


def test_the_longest_runs_are_started_first(tmp_path: Path) -> None:
    shorter, longer = study(tmp_path, "shorter"), study(tmp_path, "longer", training=LONGER)
    plan = Plan.from_values({"studies": [str(shorter), str(longer)]}, tmp_path / "studies")
    priorities = {
        (name, run.spec.model.id): plan.priority(run.spec.hash)
        for name in ("shorter", "longer")
        for run in plan.study(name).runs
    }
    assert sorted(priorities, key=lambda key: priorities[key]) == [
        ("shorter", "logistic"),
        ("longer", "logistic"),
        ("shorter", "cnn-small"),
        ("longer", "cnn-small"),
    ]


def test_of_equal_steps_the_wider_examples_are_started_first(tmp_path: Path) -> None:
    path = study(tmp_path, datasets=["digits", "mnist"], models=["logistic", "cnn-small"])
    plan = Plan.from_values({"studies": [str(path)]}, tmp_path / "studies")
    found = {
        run.spec.dataset.id: plan.priority(run.spec.hash)
        for run in plan.study("mine").runs
        if run.spec.model.id == "logistic"
    }
    # 64 and 784 pixels, for a model whose work does not depend on them.
    assert found["mnist"] - found["digits"] == pytest.approx(10 * math.log10(784 / 64), abs=1)


def test_a_release_at_a_minimum_counts_the_sums_that_its_solver_asks_for(tmp_path: Path) -> None:
    ids = ("dp-prototypes", "dp-objective-perturbation")
    path = study(
        tmp_path,
        models=["logistic"],
        methods=[{"id": name, "clip_norm": 1} for name in ids],
        training={"expected_batch_size": 1300, "steps": 1},
        privacy={"sampler": "full"},
    )
    plan = Plan.from_values({"studies": [str(path)]}, tmp_path / "studies")
    found = {run.spec.method.id: plan.priority(run.spec.hash) for run in plan.study("mine").runs}
    assert found[ids[1]] - found[ids[0]] == pytest.approx(10 * math.log10(20), abs=1)


def test_only_datasets_with_files_to_download_are_fetched(tmp_path: Path) -> None:
    path = study(tmp_path, datasets=["digits", "mnist"], models=["logistic", "cnn-small"])
    plan = Plan.from_values({"studies": [str(path)], "cache": "kept"}, tmp_path / "studies")
    assert plan.fetched() == ["kept/raw/mnist/fetched"]


def test_features_of_one_dataset_are_fetched_with_each_encoder(tmp_path: Path) -> None:
    names = ["reuters-r8-bow", "reuters-r8-minilm", "reuters-r8-glove", "newsgroups-glove"]
    method = {"id": "sgd", "learning_rate": 1}
    path = study(tmp_path, datasets=names, models=["logistic"], methods=[method])
    plan = Plan.from_values({"studies": [str(path)], "cache": "kept"}, tmp_path / "studies")
    assert {name.split("/")[2] for name in plan.fetched()} == {
        *("reuters-r8-bow", "reuters-r8-minilm", "newsgroups-glove")
    }


def test_jobs_are_called_by_the_words_of_the_study(tmp_path: Path) -> None:
    tune = {"grid": {"clip_norm": [1, 2]}, "seeds": [7]}
    path = study(
        tmp_path,
        datasets=[{"id": "digits", "label": "mail"}],
        models=["logistic"],
        epsilons=[8],
        seeds=[3],
        methods=[{"id": "dp-sgd", "label": "ours", "learning_rate": 1, "tune": tune}],
    )
    plan = Plan.from_values({"studies": [str(path)]}, tmp_path / "studies")
    (run,) = plan.study("mine").runs
    tuning = plan.study("mine").tuning_runs[0]
    assert run.spec.tuning is not None
    assert run.spec.budget is not None
    assert plan.label("train", run.spec.hash) == "mail, logistic, ours, ε=8, seed 3"
    assert (
        plan.label("train", tuning.hash)
        == "mail, logistic, dp-sgd, ε=8, seed 7, tuning clip_norm 1.0"
    )
    assert plan.label("select", run.spec.tuning.key) == "clip_norm of mail, logistic, dp-sgd, ε=8"
    assert plan.label("calibrate", run.spec.budget.key) == "ε=8, δ=0.00077, 5 steps, pld"
    assert plan.label("prepare", "digits") == "digits"


def test_a_job_finds_its_run_in_a_study_that_is_not_configured(tmp_path: Path) -> None:
    other = study(tmp_path, "other", seeds=[9])
    configured = study(tmp_path, "configured")
    plan = Plan.from_values({"studies": [str(configured)]}, tmp_path / "studies")
    wanted = load_study(other).runs[0].spec
    assert plan.run(wanted.hash) == wanted
    with pytest.raises(UserError, match="no study plans it"):
        plan.run("0" * 12)


def test_a_wrong_config_names_key_and_nearest_name() -> None:
    with pytest.raises(UserError) as error:
        parse(Config, {"study": ["quickstart"], "device": "gpu"}, file="config.yaml")
    assert "config.yaml: study: unknown key. Did you mean 'studies'?" in str(error.value)
    assert "config.yaml: device: input should be 'auto', 'cpu' or 'cuda'" in str(error.value)


@pytest.mark.parametrize("word", ["off", "'off'", "no", "false"])
def test_tracking_is_off_as_the_configuration_says_it(word: str) -> None:
    """YAML 1.1 reads the plain word as false."""
    assert parse(Config, load_yaml(f"tracking: {word}")).tracking == "off"


@pytest.mark.parametrize("word", ["live", "after"])
def test_a_time_of_tracking_that_earlier_versions_knew_says_what_to_write(word: str) -> None:
    with pytest.raises(UserError) as error:
        parse(Config, {"tracking": word}, file="config.yaml")
    assert f"config.yaml: tracking: {word} is gone" in str(error.value)
    assert "write sync. `make mlflow`" in str(error.value)


def test_a_title_ends_no_script_and_is_no_wildcard_in_snakemakes_report(tmp_path: Path) -> None:
    title = "</script><script>alert(1)</script> {A}"
    path = study(tmp_path)
    item = {"kind": "accuracy-vs-epsilon", "panels": "one", "title": title}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "report": [item]}))
    plan = Plan.from_values({"studies": [str(path)]}, tmp_path / "workflow" / "studies")
    labels = plan.figure_labels(path.stem, 0)
    assert not set("<{}") & set("".join(labels.values()))
    assert "script>alert(1)" in labels["figure"]


@pytest.mark.parametrize("first", ["SGD", "Größe"])
def test_names_that_look_the_same_are_refused(first: str, tmp_path: Path) -> None:
    second = unicodedata.normalize("NFD", first).lower()
    methods = [
        {"id": "dp-sgd", "label": label, "learning_rate": 1, "clip_norm": 1}
        for label in (first, second)
    ]
    with pytest.raises(UserError, match=r"panels\.one\.methods: .* look the same"):
        load_study(study(tmp_path, methods=methods))


def test_panels_whose_files_would_be_one_on_another_machine_are_refused(tmp_path: Path) -> None:
    path = study(tmp_path)
    values = yaml.safe_load(path.read_text())
    panels = dict.fromkeys(("A", "a"), values["panels"]["one"])
    path.write_text(yaml.safe_dump({**values, "panels": panels}))
    with pytest.raises(UserError, match="panels: 'A' and 'a' look the same"):
        load_study(path)


def test_names_that_are_too_long_for_a_file_are_refused(tmp_path: Path) -> None:
    path = study(tmp_path)
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, "panels": {"a" * 300: values["panels"]["one"]}}))
    with pytest.raises(UserError, match=r"panel 'aaa.*120 at most"):
        load_study(path)
    long = path.rename(tmp_path / f"{'s' * 200}.yaml")
    long.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match="its name has 200 characters, at most 120"):
        Plan.from_values({"studies": [str(long)]}, tmp_path)


@cache
def validators() -> dict[str, Any]:
    """Return what holds values to each schema, without checking the schema itself each time."""
    made = schemas()
    resources = ((name, Resource.from_contents(schema)) for name, schema in made.items())
    registry = Registry().with_resources(resources)
    kinds = jsonschema.validators
    return {
        name: kinds.validator_for(schema)(schema, registry=registry)
        for name, schema in made.items()
    }


def validate(name: str, values: Any) -> None:
    validators()[f"{name}.schema.json"].validate(values)


@pytest.mark.long
def test_the_command_writes_valid_schemas_of_a_moderate_size(tmp_path: Path) -> None:
    assert main(["schema", "--out", str(tmp_path)]) == 0
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    written = {name: json.loads(text) for name, text in texts.items()}
    assert written == {name: made.schema for name, made in validators().items()}
    assert sum(len(text.splitlines()) for text in texts.values()) < 4700
    for schema in written.values():
        jsonschema.validators.validator_for(schema).check_schema(schema)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_shipped_study_fits_its_schema(path: Path) -> None:
    validate("study", yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", [path for path in FILES if path.name == SHARED_FILE], ids=str)
def test_every_shipped_shared_file_fits_its_schema(path: Path) -> None:
    validate("shared", yaml.safe_load(path.read_text()))


def test_the_shipped_config_fits_its_schema() -> None:
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    validate("config", values)
    parse(Config, values, file="config.yaml")


@pytest.mark.parametrize("path", [*SCALES, ROOT / "docs" / "run.yaml"], ids=lambda path: path.stem)
def test_every_shipped_scale_and_run_fits_its_schema(path: Path) -> None:
    validate("scale" if path in SCALES else "run", yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ((), {"titel": "Mine"}),
        (("panels", "one"), {"seed": [1]}),
        (("panels", "one", "datasets", 0), {"split_sed": 1}),
        (("panels", "one", "methods", 1), {"learning_rat": 1}),
        (("panels", "one", "methods", 1), {"epsilon": 1}),
        (("panels", "one", "methods", 1), {"clip_norm": -1}),
        (("panels", "one", "methods", 1, "overrides", 0), {"learning_rat": 1}),
        (("panels", "one", "methods", 1, "overrides", 0), {"id": "dp-sgd"}),
    ],
    ids=str,
)
def test_a_wrong_study_does_not_fit_the_schema(
    place: tuple[str | int, ...], wrong: dict[str, Any], tmp_path: Path
) -> None:
    text = study(tmp_path, datasets=[{"id": "digits", "label": "8x8"}]).read_text()
    values = json.loads(json.dumps(yaml.safe_load(text)))
    validate("study", values)
    node = values
    for key in place:
        node = node[key]
    node.update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        validate("study", values)


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        ("method", {"label": "mine"}),
        ("method", {"learning_rat": 1}),
        ("method", {"tune": {}}),
        ("dataset", {"id": "digit"}),
        ("training", {"epoch": 1}),
    ],
    ids=str,
)
def test_a_wrong_run_does_not_fit_the_schema(section: str, wrong: dict[str, Any]) -> None:
    values = yaml.safe_load((ROOT / "docs" / "run.yaml").read_text())
    given = values[section]
    values[section] = {**({"id": given} if isinstance(given, str) else given), **wrong}
    with pytest.raises(jsonschema.ValidationError):
        validate("run", values)


@pytest.mark.parametrize("name", ["learning_rate", "clip_norm"])
def test_a_run_needs_every_hyper_parameter_of_its_method(name: str) -> None:
    values = yaml.safe_load((ROOT / "docs" / "run.yaml").read_text())
    del values["method"][name]
    with pytest.raises(jsonschema.ValidationError, match="required"):
        validate("run", values)


def shares(path: Path, name: str, panel: str = "one") -> Path:
    """Write a study that shows the panels of another."""
    other = path.with_stem("shows")
    report = [{"kind": "curves", "panels": panel}]
    other.write_text(yaml.safe_dump({"title": "Shows", "shares": name, "report": report}))
    return other


def test_a_study_that_shares_the_panels_of_another_has_its_runs(tmp_path: Path) -> None:
    path = study(tmp_path)
    plan = Plan.from_values({"studies": [str(shares(path, "mine"))]}, path.parent)
    assert plan.results("shows") == plan.results("mine")
    assert plan.study("shows").sources == (path,)
    assert plan.study("mine").sources == ()


@pytest.mark.parametrize(
    ("name", "panel", "message"),
    [
        ("mime", "one", "shares: unknown study 'mime'. Did you mean 'mine'?"),
        ("mine", "two", "shows panel 'two', which is not among the panels one"),
        ("shows", "one", "shares: shows has no panels of its own to share"),
    ],
)
def test_a_study_that_cannot_share_is_refused_with_the_reason(
    tmp_path: Path, name: str, panel: str, message: str
) -> None:
    with pytest.raises(UserError) as error:
        load_study(shares(study(tmp_path), name, panel))
    assert message in str(error.value)


PAPER = """
notes: {limits: Two sentences. They are shared.}
bases:
  every:
    seeds: [1, 2]
    training: {expected_batch_size: 50, steps: 3}
    hyperparameters: {dp-sgd: {learning_rate: 1, clip_norm: 1}}
  digits:
    base: every
    title: Handwritten digits
    datasets: [digits]
    models: [logistic]
    hyperparameters: {dp-sgd: {clip_norm: 2}}
"""
MULTIPLIED = """
title: Mine
description: A question.
notes: [limits]
defaults:
  epsilons: [1]
  training: {steps: 4}
  methods: [dp-sgd]
  axes:
    accounting:
      published: {suffix: "", title: as published, privacy: {accountant: rdp}}
      corrected: {privacy: {accountant: prv}}
panels:
  main: {base: digits}
  other: {base: digits, axes: {accounting: {}}, methods: [{id: dp-sgd, label: mine, clip_norm: 3}]}
report:
  - {kind: table, panels: main, title: "{panel}, {accounting}"}
  - {kind: curves, title: "{panel}"}
  - {kind: table}
  - {kind: ablation, panels: [main], only: {accounting: corrected}}
"""


def multiplied(folder: Path, old: str = "", new: str = "") -> Path:
    """Write a study that refers to its paper's file and has an axis."""
    assert old in MULTIPLIED
    folder = folder / "studies" / "paper"
    folder.mkdir(parents=True)
    (folder / "shared.yaml").write_text(PAPER)
    (folder / "table1.yaml").write_text(MULTIPLIED.replace(old, new, 1))
    return folder / "table1.yaml"


def test_an_axis_repeats_a_panel_and_names_it_by_its_options(tmp_path: Path) -> None:
    study = load_study(multiplied(tmp_path))
    assert list(study.panels) == ["main", "main-corrected", "other"]
    accountants = {run.panel: run.spec.privacy.accountant for run in study.runs if run.spec.privacy}
    assert accountants == {"main": "rdp", "main-corrected": "prv", "other": "pld"}


def test_later_layers_add_to_a_base_and_take_precedence(tmp_path: Path) -> None:
    runs = {run.panel: run for run in load_study(multiplied(tmp_path)).runs}
    training = runs["main"].spec.training
    assert (training.expected_batch_size, training.steps) == (50, 4)
    assert {run.spec.seed for run in load_study(multiplied(tmp_path / "b")).runs} == {1, 2}
    norms = {name: run.spec.method.clip_norm for name, run in runs.items()}  # type: ignore[attr-defined]
    assert norms == {"main": 2, "main-corrected": 2, "other": 3}
    assert runs["other"].label == "mine"


def test_a_panel_starts_from_several_bases_the_later_ones_taking_precedence(tmp_path: Path) -> None:
    path = multiplied(tmp_path, "main: {base: digits}", "main: {base: [digits, few, every]}")
    shared = path.with_name("shared.yaml")
    few = "  few: {base: every, title: Few, seeds: [3], hyperparameters: {dp-sgd: {clip_norm: 5}}}"
    shared.write_text(f"{PAPER}{few}\n")
    runs = [run for run in load_study(path).runs if run.panel == "main"]
    assert load_study(path).titles["main"] == "Few, as published"
    (run,) = runs  # of `every`, which is not repeated after `few`, there are no seeds
    assert (run.spec.seed, run.spec.method.clip_norm, run.spec.training.steps) == (3, 5, 4)  # type: ignore[attr-defined]


def test_hyperparameters_of_several_methods_add_up(tmp_path: Path) -> None:
    several = """
  hyperparameters:
    dp-sgd, dp-sgdm: {learning_rate: 5, clip_norm: 4}
    dp-sgdm, dp-sgd: {clip_norm: 7}
"""
    path = multiplied(tmp_path, "  methods: [dp-sgd]\n", f"  methods: [dp-sgd, dp-sgdm]{several}")
    methods = {run.label: run.spec.method for run in load_study(path).runs if run.panel == "main"}
    found = {name: (one.learning_rate, one.clip_norm) for name, one in methods.items()}  # type: ignore[attr-defined]
    assert found == {"dp-sgd": (5, 7), "dp-sgdm": (5, 7)}
    path.write_text(path.read_text().replace("dp-sgdm, dp-sgd:", "dp-sgdm, dp-sdg:"))
    with pytest.raises(UserError, match="hyperparameters: unknown method 'dp-sdg'"):
        load_study(path).runs  # noqa: B018


def test_a_sweep_makes_a_method_of_each_value_and_names_it_by_its_label(tmp_path: Path) -> None:
    swept = '{id: dp-adam, label: "γ {gamma}", clip_norm: 1, sweep: {gamma: [1.0e-8, 0.001]}}'
    betas = '{id: dp-adam, label: "β {betas}", clip_norm: 1, sweep: {betas: [[0.5, 0.75]]}}'
    old = "{id: dp-sgd, label: mine, clip_norm: 3}"
    path = multiplied(tmp_path, old, f"{swept}, {betas}")
    shared = path.with_name("shared.yaml")
    shared.write_text(
        PAPER.replace(
            "dp-sgd: {learning_rate", "dp-adam: {learning_rate: 1}, dp-sgd: {learning_rate"
        )
    )
    found = {run.label: run.spec.method for run in load_study(path).runs if run.panel == "other"}
    assert list(found) == ["γ 1e-8", "γ 0.001", "β 0.5, 0.75"]
    assert [one.gamma for one in found.values()][:2] == [1e-8, 1e-3]  # type: ignore[attr-defined]
    assert found["β 0.5, 0.75"].betas == (0.5, 0.75)  # type: ignore[attr-defined]


def test_report_items_are_repeated_over_panels_and_options(tmp_path: Path) -> None:
    items = [(i.kind, i.panel, i.title) for i in load_study(multiplied(tmp_path)).report]
    assert items == [
        ("table", "main", "Handwritten digits, as published"),
        ("table", "main-corrected", "Handwritten digits, corrected"),
        ("curves", "main", "Handwritten digits"),
        ("curves", "main-corrected", "Handwritten digits"),
        ("curves", "other", "Handwritten digits"),
        ("table", "main", ""),
        ("table", "main-corrected", ""),
        ("table", "other", ""),
        ("ablation", "main-corrected", ""),
    ]


def test_changes_compare_a_panel_with_another_option_of_its_axes(tmp_path: Path) -> None:
    changes = "kind: changes, against: {accounting: published}"
    study = load_study(multiplied(tmp_path, "kind: ablation", changes))
    assert study.report[-1].panel == "main-corrected"
    assert compared(study.report[-1], study.grids, study.path) == {"against": ("main",)}
    with pytest.raises(UserError, match=r"report.3.against: main has no panel with"):
        load_study(
            multiplied(tmp_path / "b", "kind: ablation", changes.replace("published", "none"))
        )


def test_an_overview_has_a_column_for_each_change(tmp_path: Path) -> None:
    shown = "kind: overview, together: true, changes: {exact: {accounting: corrected}}"
    shown = f"{{{shown}, panels: [main], only: {{accounting: published}}}}"
    old = "{kind: ablation, panels: [main], only: {accounting: corrected}}"
    study = load_study(multiplied(tmp_path, old, shown))
    assert study.report[-1].named == ("main",)
    expected = {"changes.exact": ("main-corrected",)}
    assert compared(study.report[-1], study.grids, study.path) == expected
    with pytest.raises(UserError, match=r"report.3.changes.exact: main has no panel with"):
        load_study(multiplied(tmp_path / "b", old, shown.replace("corrected", "none")))
    with pytest.raises(UserError, match=r"report.3.changes: unknown key"):
        load_study(multiplied(tmp_path / "c", old, shown.replace("overview", "table")))


def test_later_values_take_precedence_from_bases_to_the_entry_of_a_method(tmp_path: Path) -> None:
    """Each of a to f is said by one more of the places that follow each other."""
    places = ["base of base", "base", "defaults", "panel", "option", "entry"]
    said = [dict.fromkeys("abcdef"[number:], place) for number, place in enumerate(places)]
    lowest, base, defaults, panel, option = ({"hyperparameters": {"sgd": one}} for one in said[:5])
    shared = {"bases": {"lowest": lowest, "base": {**base, "base": "lowest"}}}
    grid = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1]}
    methods = [{"id": "sgd", **said[5]}]
    study = {
        "title": "Places",
        "defaults": {**defaults, "base": "base"},
        "panels": {"one": {**grid, **panel, "methods": methods, "axes": {"x": {"y": option}}}},
        "report": [{"kind": "table"}],
    }
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(shared))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    (only,) = load_study(tmp_path / "study.yaml").panels.values()
    (method,) = only.each_method
    assert method.values == {"id": "sgd", **dict(zip("abcdef", places, strict=True))}


def test_notes_of_the_paper_follow_the_description(tmp_path: Path) -> None:
    path = multiplied(tmp_path)
    study = load_study(path)
    assert study.description == "A question.\n\nTwo sentences. They are shared."
    assert study.sources == (path.with_name("shared.yaml"),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("base: digits", "base: digit", "panels.main: base: unknown base 'digit'. Did you mean 'd"),
        ("notes: [limits]", "notes: [limit]", "notes: unknown note 'limit'. Did you mean 'limits'"),
        ("{base: digits}", "{title: Alone}", "panels.main.datasets: give at least one."),
        ('suffix: ""', 'suffix: "a b"', "panel 'main-a b': letters, digits, - and _ make a name"),
        ("corrected: {", 'corrected: {suffix: "", ', "two panels are named 'main'"),
        ("corrected: {", "corrected: {base: digits, ", "option corrected of accounting has a base"),
        (
            "main: {",
            "main: {suffix: x, ",
            "panels: main has a suffix, which is for options of axes",
        ),
        ("accounting: corrected}", "accounting: none}", "report.3.only: unknown option of accoun"),
        ("{accounting}", "{account}", "report.0: unknown name in a title 'account'"),
        ("{kind: table}", "{}", "report.2: give its 'kind'"),
        ("label: mine, clip_norm: 3", "sweep: 3", "panels.other.methods.0.sweep: expected values"),
        (
            "label: mine,",
            "sweep: {clip_norm: [1, 2]},",
            "panels.other.methods.0.clip_norm: is swept, too. Give one of them",
        ),
        ("kind: ablation", "kind: sweep", "report.3.over: required, but not given"),
        ("kind: ablation", "kind: changes", "report.3.against: required, but not given"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_in_an_axis_a_base_or_a_report_names_the_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = multiplied(tmp_path, old, new)
    with pytest.raises(UserError) as error:
        load_study(path).runs  # noqa: B018
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_bases_that_start_from_each_other_are_refused(tmp_path: Path) -> None:
    path = multiplied(tmp_path)
    path.with_name("shared.yaml").write_text(
        PAPER.replace("  every:", "  every:\n    base: digits")
    )
    with pytest.raises(UserError, match="digits → every → digits never ends"):
        load_study(path)
