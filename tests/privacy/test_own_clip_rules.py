"""A clip rule of the user's is one line in a study, and nothing in it can lengthen a vector."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from clipnoise.core.clip_rules import SHORTEST, ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import from_mapping, to_mapping

ROOT = Path(__file__).parents[2]
C = 0.7
HEAD = """
from dataclasses import dataclass
import torch
from clipnoise.core.clipping import OwnClipRule

SEEN = []

@dataclass(frozen=True, kw_only=True)
class Planted(OwnClipRule):
    id = "planted"
    softness: float = 1.0

"""
FACTOR = "    def factor(self, norm, clip_norm):\n        "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(tmp_path))
    return tmp_path


def planted(folder: Path, factor: str, **options: Any) -> ClipRule:
    """Return the rule of a folder that holds this factor."""
    (folder / "planted.py").write_text(HEAD + FACTOR + factor)
    return parse(ClipRule, {"kind": "planted", **options})


def spread(count: int) -> torch.Tensor:
    """Return vectors of very different lengths; the first is zero."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 9, generator=draws)
    rows *= 10 ** (-25 + 50 * torch.rand(count, 1, generator=draws))
    rows[0] = 0
    return rows


@pytest.mark.parametrize(
    "factor",
    [
        "return norm * 0 + 1e9",
        "return 1.0",
        "return norm",
        "return -clip_norm / norm",
        "return norm / 0",
        "return torch.log(-norm)",
        "return clip_norm / norm",
        "return 2 * clip_norm / norm.clamp(min=1e-30)",
    ],
)
@pytest.mark.parametrize("per", ["example", "layer"])
def test_whatever_a_rule_returns_no_vector_is_longer_than_the_clip_norm(
    factor: str, per: str, folder: Path
) -> None:
    rule = planted(folder, factor, per=per)
    for row in spread(200):
        total = clipped_sum([row[None]], Clipping(C, rule=rule), [2, 7])
        assert float(total.double().norm()) <= C * (1 + 1e-6)


def test_a_norm_too_short_to_be_computed_gives_no_large_factor(folder: Path) -> None:
    factors = planted(folder, "return norm * 0 + 1e38").factors(torch.zeros(1), C)
    assert float(factors) == pytest.approx(C / SHORTEST)


def test_a_plain_number_becomes_a_factor_on_the_device_of_the_norm(folder: Path) -> None:
    norms = torch.ones(3, device="meta")
    assert planted(folder, "return 0.5").factors(norms, C).device == norms.device


def test_the_norms_of_others_change_nothing(folder: Path) -> None:
    """A rule that divides by the largest norm of a batch sees one, which is the largest."""
    rule = planted(folder, "return clip_norm * norm / norm.max() ** 2")
    norms = torch.tensor([[0.5, 2.0, 30.0], [0.1, 4.0, 1.0]])
    together = rule.factors(norms, C)
    alone = [[float(rule.factors(norm[None], C)) for norm in row] for row in norms]
    torch.testing.assert_close(together, torch.tensor(alone), rtol=0, atol=0)


REFUSED = {
    "clip_norm / norm": "its factor must be finite and at least 0; it is inf for ‖v‖ = 0 and C",
    "norm - 1": "its factor must be finite and at least 0; it is -1 for ‖v‖ = 0",
    "torch.log(-1 - norm)": "its factor must be finite and at least 0; it is nan",
    "min(1.0, clip_norm / norm)": "class Planted: .*vmap",
    "float(norm)": "class Planted: .*vmap",
    "torch.rand_like(norm)": "class Planted: .*random",
    "SEEN.append(1) or norm * 0 + 1 / len(SEEN)": "must be the same whenever it is asked for",
    "torch.ones(3)": "factor must return one number for one norm",
    "missing": "class Planted: name 'missing' is not defined",
}


@pytest.mark.parametrize("factor", REFUSED)
def test_a_rule_that_is_no_function_of_one_norm_is_refused_before_training(
    factor: str, folder: Path
) -> None:
    with pytest.raises(UserError, match=REFUSED[factor]) as error:
        planted(folder, f"return {factor}").check(C)
    assert "planted.py" in str(error.value)


@pytest.mark.parametrize("name", ["factors", "check", "sealed"])
def test_what_bounds_a_vector_cannot_be_overridden(name: str, folder: Path) -> None:
    body = f"    def {name}(self, norms, clip_norm):\n        return norms\n"
    with pytest.raises(UserError, match=f"Planted.{name}: only the suite decides this"):
        planted(folder, f"return norm\n\n{body}")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"kind": "plantet"},
            "clip_rule.kind: unknown clip rule 'plantet'. Did you mean 'planted'",
        ),
        ({"kind": "planted", "sofness": 1}, "clip_rule.sofness: unknown key. Did you mean 'soft"),
        ({"kind": "planted", "softness": "a"}, "clip_rule.softness: input should be a number"),
        (
            {"kind": "planted", "gamma": 1},
            "clip_rule: gamma belongs to the kinds automatic and psac, not to planted",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key(rule: dict[str, Any], message: str, folder: Path) -> None:
    planted(folder, "return norm * 0")
    with pytest.raises(UserError, match=f"(?i){message}"):
        parse(DPSGD, {"learning_rate": 1, "clip_norm": 1, "clip_rule": rule})


def test_a_rule_cannot_take_the_name_of_one_of_the_package(folder: Path) -> None:
    (folder / "planted.py").write_text(HEAD.replace("planted", "psac") + FACTOR + "return norm")
    with pytest.raises(UserError, match="'psac' is a clip rule of the package"):
        parse(ClipRule, {"kind": "planted"})


def test_a_rule_without_a_factor_is_refused(folder: Path) -> None:
    (folder / "planted.py").write_text(HEAD)
    with pytest.raises(UserError, match=r"planted.py: class Planted: it has no factor"):
        parse(ClipRule, {"kind": "planted"})


def test_the_example_is_smooth_and_bounded(folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "folder" / "sqrt_clip.py", folder)
    rule = parse(ClipRule, {"kind": "sqrt-clip", "softness": 2})
    rule.check(C)
    assert to_plain(rule) == {"kind": "sqrt-clip", "gamma": None, "per": "example", "softness": 2}
    norms = torch.tensor([0.0, C, 1e6 * C], dtype=torch.float64)
    expected = [1 / 2, 1 / math.sqrt(5), 1e-6]
    assert rule.factors(norms, C).tolist() == pytest.approx(expected, rel=1e-9)


def test_a_rule_of_a_folder_is_part_of_a_run(folder: Path) -> None:
    planted(folder, "return norm * 0 + 1")
    method = {"id": "dp-adambc", "learning_rate": 1, "clip_norm": 1}
    spec = from_mapping(
        {
            "dataset": "synthetic",
            "model": "logistic",
            "method": {**method, "clip_rule": {"kind": "planted", "softness": 3}},
            "privacy": {"epsilon": 1},
            "training": {"expected_batch_size": 10, "steps": 2},
            "seed": 1,
        }
    )
    assert to_mapping(from_mapping(to_mapping(spec))) == to_mapping(spec)
    assert from_mapping(to_mapping(spec)).hash == spec.hash
    before = fingerprint(spec)
    without = from_mapping(to_mapping(spec) | {"method": method})
    assert fingerprint(without) != before
    assert without.hash != spec.hash


def test_a_rule_that_is_wrong_for_very_short_or_very_long_vectors_alone_is_refused(
    folder: Path,
) -> None:
    for wrong in ("(norm > 0) & (norm < 1e-29)", "norm > 1e29"):
        rule = planted(folder, f"return torch.where({wrong}, -1.0, 0.0)")
        with pytest.raises(UserError, match="must be finite and at least 0"):
            rule.check(C)


def test_a_vector_is_left_out_where_the_factor_is_not_a_number(folder: Path) -> None:
    rule = planted(folder, "return norm * float('nan')")
    assert rule.factors(torch.tensor([0.5, 2.0]), C).tolist() == [0.0, 0.0]
