"""Every method brings what a method must bring; the rows of the matrix are the registered ones.

Sensitivity, contract, schedules, the page of methods and the audits run over all of them by
themselves. What has to be written for a method is looked for here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from every_method import METHODS, VARIANTS, build

from clipnoise.audit.catalog import MISTAKES, audited_methods, claiming_methods
from clipnoise.core.method import Method

ROOT = Path(__file__).parents[2]
OF_ALL = {"test_replay_interface.py", "test_replay_properties.py"}  # no transcriptions
REPLAYS = [
    *(p for p in (ROOT / "tests/unit").glob("test_replay_*.py") if p.name not in OF_ALL),
    *(ROOT / f"tests/unit/test_{name}.py" for name in ("one_release", "released_update_rules")),
    ROOT / "tests/privacy/test_objective_perturbation.py",
]
# The likely mistake with what a method does beyond DP-SGD: a control, or a test that makes it.
BY_HOOK = {
    "update": "clean-mean-in-update",
    "scale": "scaled-after-clipping",
    "offset": "private-preconditioner",
    "points": "point-from-private-mean",
    "iterates": "each-pass-clipped",
    "clip_norm_at": "clip-norm-from-private-mean",
    "clipping": "clip-norm-from-private-mean",
    "evaluated": "clean-mean-in-model",
    "local_training": "test_one_local_step_on_all_examples_is_dp_sgd_on_users",
}
BY_QUERY = {
    "ClippedMean": "half-noise",
    "ClippedUserMean": "test_one_local_step_on_all_examples_is_dp_sgd_on_users",
    "ClippedMeanAndCount": "count-without-noise",
    "ClippedMeanAndSlacks": "slots-too-wide",
    "ClippedLossMean": "difference-not-clipped",
    "IndependentMoments": "test_catches_two_releases_at_the_noise_of_one",
    "PerturbedMinimum": "curvature-left-out",
    "JointMoments": "test_catches_the_published_sensitivity_of_joint_moments",
}
# Hooks that only name constants or public data: what they give is no function of private data.
PUBLIC_HOOKS = {"warm_start", "effective_noise_multiplier", "passes", "uses_public_data"}
UNSEARCHED = {  # no optimizer on features of norm 1; nominal; federated with side information
    *("dp-least-squares", "dp-objective-perturbation", "dp-prototypes", "jme-adam", "adadps-fed"),
}


def own_hooks(method: Method) -> set[str]:
    """Return which functions of a method are its own."""
    hooks = {name for name, value in vars(Method).items() if not name.startswith("_")}
    hooks -= {"source", "family", "schedules", "extremes", "at", "query", "private", "warms_up"}
    hooks -= {"against_correlated_noise", "check_shapes"}
    shared = {Method.__module__}
    return {
        name
        for name in hooks
        for kind in [next(one for one in type(method).__mro__ if name in vars(one))]
        if callable(vars(kind)[name]) and kind.__module__ not in shared
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_replayed_against_a_transcription(name: str) -> None:
    quoted = re.compile(rf"[\"']{re.escape(name)}[\"']")
    assert [path for path in REPLAYS if quoted.search(path.read_text())], "tests/unit/test_replay_*"


def test_every_method_and_variant_is_audited_and_has_its_sensitivity_measured() -> None:
    assert {name for name, _ in VARIANTS} == set(METHODS) == set(audited_methods())
    assert set(claiming_methods()) == {name for name in METHODS if build(name).private}


@pytest.mark.parametrize("name", claiming_methods())
def test_the_likely_mistake_with_a_private_method_is_made_on_purpose(name: str) -> None:
    method = build(name)
    made = [BY_HOOK[hook] for hook in own_hooks(method) - PUBLIC_HOOKS]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for mistake in [BY_QUERY[type(method.query).__name__], *made]:
        assert mistake in MISTAKES or f"def {mistake}(" in tests, mistake


def test_every_private_method_has_a_search_space_in_the_league() -> None:
    shared = yaml.safe_load((ROOT / "workflow/studies/league/shared.yaml").read_text())
    spaces = shared["bases"]["spaces"]["hyperparameters"]
    searched = {name.strip() for names in spaces for name in names.split(",")}
    assert set(claiming_methods()) - searched == UNSEARCHED
