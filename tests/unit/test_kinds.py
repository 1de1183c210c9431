"""Clip rules and noise: one class for each kind, read and written as plain data by its `kind`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from torch import Tensor

from clipnoise.core.clip_rules import ClipRule, HardClip, OwnClipRule
from clipnoise.errors import UserError
from clipnoise.fields import adapter, parse, to_plain
from clipnoise.kinds import Kinds
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation

BASES: list[Any] = [ClipRule, NoiseCorrelation]
REQUIRED: dict[str, dict[str, Any]] = {
    "banded": {"bands": 3},
    "banded-inverse": {"bands": 3},
    "blt": {"buffers": 2},
    "lambda-cgd": {"cancelled": 0.5},
}
KINDS = [(base, kind) for base in BASES for kind in base.package_kinds()]
every_kind = pytest.mark.parametrize(("base", "kind"), KINDS)


@every_kind
def test_a_kind_is_read_and_written_with_the_same_keys_first(base: type[Kinds], kind: str) -> None:
    value = parse(base, {"kind": kind, **REQUIRED.get(kind, {})})
    plain = to_plain(value)
    assert type(value).id == plain["kind"] == kind
    assert list(plain)[: len(base.written)] == list(base.written)
    assert parse(base, plain) == value
    assert parse(base, value) is value
    assert adapter(base).dump_python(value, mode="json") == plain


@every_kind
def test_editors_allow_each_kind_with_its_own_options_and_no_other(
    base: type[Kinds], kind: str
) -> None:
    schema = adapter(base).json_schema()
    plain = to_plain(parse(base, {"kind": kind, **REQUIRED.get(kind, {})}))
    jsonschema.validate(plain, schema)
    for wrong in ({"colour": 1}, {"kind": "pink"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, **wrong}, schema)


@pytest.mark.parametrize("base", BASES)
def test_the_default_kind_needs_no_name(base: type[Kinds]) -> None:
    value = parse(base, {})
    assert type(value).id == base.default
    jsonschema.validate({}, adapter(base).json_schema())


@pytest.mark.parametrize(
    ("base", "values", "message"),
    [
        (
            NoiseCorrelation,
            {"kind": "dense", "bands": 3},
            "bands belongs to the kinds banded and ",
        ),
        (NoiseCorrelation, {"buffers": 3}, "buffers belongs to the kind blt, not to independent"),
        (NoiseCorrelation, {"kind": "banded", "band": 3}, "x.band: unknown key. Did you mean 'ban"),
        (NoiseCorrelation, {"kind": "banded"}, "x.bands: required, but not given"),
        (NoiseCorrelation, {"kind": "bandet"}, "x.kind: unknown kind of noise 'bandet'. Did you "),
        (NoiseCorrelation, {"kind": ["banded"]}, r"x.kind: input should be text, got \['banded'\]"),
        (ClipRule, {"kind": "soft"}, "Allowed: automatic, hard, psac.$"),
        (ClipRule, "hard", "x: input should be a mapping, got 'hard'"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_is_allowed(
    base: type[Kinds], values: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse(base, values, key="x")


def test_an_object_of_an_unknown_class_is_refused() -> None:
    class Loose(HardClip):
        def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
            return norms

    class Quiet(IndependentNoise):
        pass

    with pytest.raises(UserError, match="clip_rule: input should be an OwnClipRule, got Loose"):
        parse(ClipRule, Loose(), key="clip_rule")
    with pytest.raises(UserError, match="noise: input should be an OwnNoise, got Quiet"):
        parse(NoiseCorrelation, Quiet(), key="noise")


def test_the_option_of_one_kind_is_written_for_no_other() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Soft(OwnClipRule):
        id = "soft"
        softness: float = 2.0

        def factor(self, norm: Tensor, clip_norm: float) -> Tensor:
            return clip_norm / (norm + self.softness)

    assert to_plain(Soft()) == {"kind": "soft", "gamma": None, "per": "example", "softness": 2.0}
    assert to_plain(HardClip()) == {"kind": "hard", "gamma": None, "per": "example"}
