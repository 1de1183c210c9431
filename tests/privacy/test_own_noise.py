"""Noise of the user's: whatever its entries are, σ means what it means for independent noise."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipnoise.audit.noise import check_noise
from clipnoise.audit.subject import subject
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.noise_strategies import square_root_coefficients
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import from_mapping, to_mapping

ROOT = Path(__file__).parents[2]
HEAD = """
from dataclasses import dataclass
import numpy as np
from clipnoise.privacy.noise import OwnNoise

SEEN = []

@dataclass(frozen=True, kw_only=True)
class Planted(OwnNoise):
    id = "planted"
    inverse = {inverse}
    share: float = 0.5

    def entries(self, steps):
        return {entries}
"""
LOWER = "np.tril(np.random.default_rng(0).normal(size=(steps, steps)), -1)"
COLUMNS = (
    "[1, self.share]",
    "[2, -1.5, 0.5]",
    "[0.1] + [0.01] * 5",
    "self.share ** np.arange(99)",
)
MATRICES = (
    f"{LOWER} + np.eye(steps)",
    f"{LOWER} + 9 * np.eye(steps)",
    "np.diag(1 + np.arange(steps))",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(tmp_path))
    return tmp_path


def planted(
    folder: Path, entries: str, inverse: bool = False, more: str = "", **options: Any
) -> NoiseCorrelation:
    """Return the noise of a folder that has these entries."""
    (folder / "planted.py").write_text(HEAD.format(entries=entries, inverse=inverse) + more)
    return parse(NoiseCorrelation, {"kind": "planted", **options})


def spec(**privacy: Any) -> dict[str, Any]:
    return {
        "dataset": "synthetic",
        "model": "logistic",
        "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        "privacy": {"epsilon": 1, **privacy},
        "training": {"expected_batch_size": 10, "steps": 12},
        "seed": 1,
    }


@pytest.mark.parametrize("groups", [1, 3, 7])
@pytest.mark.parametrize(
    ("entries", "inverse"),
    [*((one, False) for one in (*COLUMNS, *MATRICES)), *((one, True) for one in COLUMNS)],
)
def test_participations_cost_as_many_releases_as_with_independent_noise(
    entries: str, inverse: bool, groups: int, folder: Path
) -> None:
    """Brute force: the worst signs of the contributions to each row, from the matrix alone."""
    strategy = planted(folder, entries, inverse).strategy(7, groups)
    assert strategy is not None
    sizes = np.abs(strategy.matrix())
    distances = [
        np.linalg.norm(sizes[:seen, first::groups].sum(axis=1)) / np.sqrt(-(-seen // groups))
        for first in range(groups)
        for seen in range(1, 8)
    ]
    assert max(distances) == pytest.approx(1)


@pytest.mark.parametrize("entries", ["[3.0]", "np.array([0.2])"])
def test_a_column_of_one_number_is_independent_noise(entries: str, folder: Path) -> None:
    assert planted(folder, entries).strategy(5, 1) is None


def test_a_column_keeps_the_amplification_of_as_many_groups_as_bands(folder: Path) -> None:
    planted(folder, COLUMNS[1])
    run = from_mapping(spec(noise={"kind": "planted"}, sampler="cyclic-poisson"))
    assert run.mechanism.participation.groups == 3
    strategy = run.privacy and run.privacy.noise.strategy(12, 3)
    assert strategy is not None
    np.testing.assert_allclose(np.linalg.norm(strategy.matrix(), axis=0)[:10], 1)


@pytest.mark.parametrize(
    ("entries", "inverse"), [(COLUMNS[0], True), *((one, False) for one in MATRICES)]
)
def test_all_other_noise_is_not_amplified(entries: str, inverse: bool, folder: Path) -> None:
    """The columns of a whole matrix may be longer than 1, even where it has one band."""
    assert planted(folder, entries, inverse).bands_over(12) == 12
    noise = {"kind": "planted"}
    with pytest.raises(UserError, match="bands"):
        _ = from_mapping(spec(noise=noise)).mechanism.participation
    assert (
        from_mapping(spec(noise=noise, sampler="cyclic")).mechanism.participation.sampling_rate == 1
    )


@pytest.mark.quick(inverse=[True])
@pytest.mark.parametrize(
    ("entries", "inverse"), [(COLUMNS[1], False), (COLUMNS[0], True), (MATRICES[2], False)]
)
def test_a_run_adds_the_noise_that_the_entries_describe(
    entries: str, inverse: bool, folder: Path, cache: Path
) -> None:
    noise = planted(folder, entries, inverse)
    assert check_noise(subject("dp-sgd", noise=noise, sampler="cyclic"), cache).holds


REFUSED = {
    "[]": "entries must have shape",
    "3.0": "entries must have shape",
    "np.ones((steps, 2))": r"entries must have shape \(b,\), or all of C: \(6, 6\)",
    "np.ones((steps, steps))": "entries above the diagonal must be 0",
    "np.zeros((steps, steps))": "above 0 on the diagonal",
    "[0.0, 1.0]": "above 0 on the diagonal",
    "[-1.0, 1.0]": "above 0 on the diagonal",
    "[1.0, np.nan]": "entries must be finite",
    "[1.0, np.inf]": "entries must be finite",
    "['a']": "class Planted: could not convert",
    "SEEN.append(1) or [1.0, 1 / len(SEEN)]": "entries must be the same whenever they are asked",
    "[1.0, 99.0]": r"standard deviation of .*σ; at most 1e\+06σ is allowed",
    "np.eye(steps) + 1e7 * np.tril(np.eye(steps, k=-1))": (
        r"standard deviation of .*σ; at most 1e\+06σ is allowed"
    ),
    "missing": "class Planted: name 'missing' is not defined",
}


@pytest.mark.parametrize("entries", REFUSED)
def test_entries_that_describe_no_strategy_are_refused(entries: str, folder: Path) -> None:
    with pytest.raises(UserError, match=REFUSED[entries]) as error:
        planted(folder, entries).strategy(6, 1)
    assert "planted.py" in str(error.value)


@pytest.mark.parametrize("below", ["8.0", "-8.0"])
def test_noise_may_grow_to_hundreds_of_thousands_of_standard_deviations(
    below: str, folder: Path
) -> None:
    """With 1 and x in each column, it is multiplied by −x from step to step."""
    strategy = planted(folder, f"[1.0, {below}]").strategy(6, 6)
    assert strategy is not None
    assert strategy.squared_row_norms[-1] == pytest.approx(65 * (64**6 - 1) / 63)


def test_an_inverse_is_given_as_a_column(folder: Path) -> None:
    with pytest.raises(UserError, match=r"entries must have shape \(b,\); they have \(6, 6\)"):
        planted(folder, "np.eye(steps)", inverse=True).strategy(6, 1)


@pytest.mark.parametrize(
    "name", ["unscaled", "strategy", "source", "bands_over", "sealed", "own_kinds"]
)
def test_what_the_guarantee_rests_on_cannot_be_overridden(name: str, folder: Path) -> None:
    with pytest.raises(UserError, match=f"Planted.{name}: only the suite decides this"):
        planted(folder, "[1.0]", more=f"\n    def {name}(self, steps):\n        return 1\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": 1}, "noise.shares: unknown key. Did you mean 'share'"),
        (
            {"bands": 3},
            "noise: bands belongs to the kinds banded and banded-inverse, not",
        ),
        ({"share": "a"}, "noise.share: input should be a number"),
    ],
)
def test_a_mistake_is_named_with_its_key(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    planted(folder, "[1.0]")
    with pytest.raises(UserError, match=f"(?i){message}"):
        from_mapping(spec(noise={"kind": "planted", **options}))


def test_noise_of_a_folder_is_part_of_a_run(folder: Path) -> None:
    planted(folder, COLUMNS[0])
    run = from_mapping(spec(noise={"kind": "planted", "share": 0.25}, sampler="cyclic"))
    assert to_mapping(from_mapping(to_mapping(run))) == to_mapping(run)
    without = from_mapping(spec(sampler="cyclic"))
    assert fingerprint(run) != fingerprint(without)
    assert run.hash != without.hash


def test_the_example_is_the_square_root_of_the_prefix_sums(folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "folder" / "square_root_noise.py", folder)
    noise = parse(NoiseCorrelation, {"kind": "square-root", "width": 9})
    assert to_plain(noise)["width"] == 9
    strategy = noise.strategy(9, 9)
    assert strategy is not None
    root = strategy.matrix() * np.linalg.norm(square_root_coefficients(9))
    np.testing.assert_allclose(root @ root, np.tril(np.ones((9, 9))))
