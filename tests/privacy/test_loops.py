"""Judging training loops: mistakes are refuted, honest loops are not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import loops
import lora_loops
import numpy as np
import opacus_loops
import pytest
import rank_loops
import token_loops
import torch
from loops import CLASSES, FEATURES, Plain, claim, examples
from torch import nn

from clipnoise.audit import Claim
from clipnoise.audit.loops.claim import LoopJudgement
from clipnoise.audit.loops.experiments import Experiments, Level, scaled
from clipnoise.audit.loops.noise import _repeats, problems_of
from clipnoise.audit.loops.residual import COMPARED, measured
from clipnoise.audit.loops.smallest import moved_by_one, smallest_step
from clipnoise.audit.loops.verdict import judge_loop
from clipnoise.audit.loops.watched import Loop, WatchedData, tensors_in
from clipnoise.cli.program import program
from clipnoise.errors import UserError

MISTAKES = {**loops.MISTAKES, **rank_loops.MISTAKES, **lora_loops.MISTAKES}
# One mistake for each check; and honest loops that differ in how they draw examples and noise.
ONE_OF_EACH = list({MISTAKES[mistake]: mistake for mistake in reversed(MISTAKES)}.values())
UNLIKE = (Plain, loops.Secure, loops.Shuffled, loops.Whole, loops.LooksFirst)


def judged(
    loop: Callable[..., Any], of: Claim, level: Level = "quick", **options: Any
) -> LoopJudgement:
    return judge_loop(of, loop, examples(), level=level, **options)


def refuted_by(result: LoopJudgement) -> set[str]:
    return {each.name for each in result.refuted_by}


def skipped(result: LoopJudgement) -> dict[str, str]:
    return {each.name: each.said for each in result.skipped}


@pytest.mark.quick(mistake=ONE_OF_EACH)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_loop_with_one_mistake_is_refuted_by_the_check_that_is_there_for_it(
    mistake: type[Plain],
) -> None:
    assert MISTAKES[mistake] in refuted_by(judged(mistake(), claim(**mistake.claimed)))


@pytest.mark.long
@pytest.mark.parametrize("mistake", ONE_OF_EACH, ids=lambda kind: kind.__name__)
def test_a_mistake_is_refuted_at_the_full_level(mistake: type[Plain]) -> None:
    result = judged(mistake(), claim(**mistake.claimed), level="full")
    assert MISTAKES[mistake] in refuted_by(result)


@pytest.mark.parametrize("loop", [rank_loops.Ranks, lora_loops.LowRank])
def test_ranks_and_changes_of_low_rank_without_a_mistake_are_not_refuted(loop: type[Plain]) -> None:
    assert not judged(loop(), claim()).refuted_by


@pytest.mark.long
def test_few_examples_for_each_step_are_not_refuted_where_empty_batches_release_noise() -> None:
    class Few(loops.SkipsEmptyBatches):
        def batches(self, n: int) -> Iterator[list[int]]:
            self.rate = 2 / n
            yield from Plain.batches(self, n)

    result = judged(Few(), claim(**Few.claimed))
    assert not result.refuted_by
    (sampler,) = (each for each in result.checks if each.name == "sampler")
    assert "empty batches that are skipped" in sampler.power


@pytest.mark.parametrize("loop", [loops.ShortBatch, loops.ShortBatchAndItsNoise])
def test_a_short_last_batch_is_not_refuted_where_its_noise_is_divided_as_it_is(
    loop: type[Plain],
) -> None:
    result = judged(loop(), claim(**loop.claimed))
    assert not result.refuted_by
    assert "short batch" in {each.name for each in result.checks}


@pytest.mark.parametrize("seed", range(6))
def test_the_smallest_of_poisson_batches_shows_less_than_sensitivity_allows(seed: int) -> None:
    runs = Experiments(Loop(Plain(), loops.STEPS), claim(), examples(), seed=seed)
    step = smallest_step(runs)
    assert step is not None
    assert len(runs.whole(0).reads[step]) == min(map(len, runs.whole(0).reads[1:]))
    sensitivity = loops.CLIP / loops.BATCH
    assert sensitivity / 2 < moved_by_one(runs, step, math.inf) < 1.001 * sensitivity


@pytest.mark.quick(loop=UNLIKE)
@pytest.mark.parametrize("loop", loops.HONEST, ids=lambda kind: kind.__name__)
def test_an_honest_loop_is_not_refuted(loop: type[Plain]) -> None:
    result = judged(loop(), claim(**loops.HONEST[loop]))
    assert not result.refuted_by
    assert len(result.checks) >= 6


@pytest.mark.long
@pytest.mark.parametrize("loop", loops.HONEST, ids=lambda kind: kind.__name__)
def test_an_honest_loop_is_not_refuted_with_any_noise(loop: type[Plain]) -> None:
    true = claim(**loops.HONEST[loop])
    # How often chance refutes one is counted by benchmarks/judged_loops.py.
    found = [judged(loop(), true, seed=seed).refuted_by for seed in range(1, 4)]
    assert not any(found)


@pytest.mark.long
@pytest.mark.parametrize("mode", opacus_loops.HONEST)
def test_opacus_as_documented_is_not_refuted(mode: str) -> None:
    result = judged(opacus_loops.HONEST[mode], claim())
    assert not result.refuted_by
    assert {each.name for each in result.checks} >= {"sampler", "apart", "noise", "published"}


@pytest.mark.quick(mistake=["half of the noise"])
@pytest.mark.parametrize("mistake", opacus_loops.MISTAKES)
def test_a_mistake_around_opacus_is_refuted(mistake: str) -> None:
    loop, check = opacus_loops.MISTAKES[mistake]
    assert check in refuted_by(judged(loop, claim()))


def judged_on_tokens(loop: Callable[..., Any], of: Claim) -> LoopJudgement:
    return judge_loop(of, loop, token_loops.sentences(), level="quick")


@pytest.mark.quick(loop=[token_loops.Tokens()])
@pytest.mark.parametrize("loop", [token_loops.Tokens(), token_loops.SmallGradients(rate=0.5)])
def test_an_honest_loop_on_tokens_is_not_refuted_and_what_halves_add_is_compared(
    loop: token_loops.Tokens,
) -> None:
    result = judged_on_tokens(loop, claim(**loop.claimed))
    assert not result.refuted_by
    assert {each.name for each in result.checks} >= {"apart", "sensitivity"}


def test_inputs_may_be_mappings_of_any_length_and_targets_text() -> None:
    result = judge_loop(claim(), token_loops.Texts(), token_loops.texts(), level="quick")
    assert not result.refuted_by
    assert {each.name for each in result.checks} >= {"sensitivity", "noise"}
    assert "a model of inputs like those" in skipped(result)["canaries"]


@pytest.mark.quick(mistake=list(token_loops.MISTAKES)[:1])
@pytest.mark.parametrize("mistake", token_loops.MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_on_tokens_is_refuted(mistake: type[token_loops.Tokens]) -> None:
    result = judged_on_tokens(mistake(), claim())
    assert token_loops.MISTAKES[mistake] in refuted_by(result)


def test_examples_that_are_all_the_same_are_asked_to_differ() -> None:
    tokens = [(torch.arange(token_loops.LENGTH), torch.tensor(1))] * loops.EXAMPLES
    result = judge_loop(claim(), token_loops.Tokens(), tokens, level="quick")
    assert "examples that differ" in skipped(result)["apart"]


class AlwaysClipped(loops.FromZero):
    """No bias, and every gradient is longer than the clip norm: larger inputs change nothing."""

    def gradients(self, model: nn.Module, data: Any, places: list[int]) -> torch.Tensor:
        found = super().gradients(model, data, places)
        found[:, loops.FEATURES * loops.CLASSES :] = 0
        return 100 * found


def test_where_larger_inputs_change_nothing_examples_are_exchanged() -> None:
    result = judged(AlwaysClipped(), claim())
    assert "apart" not in skipped(result)
    assert "apart" not in refuted_by(result)


def test_examples_take_the_place_of_others_of_their_shape_alone() -> None:
    data = [(torch.arange(2 + index % 3), index) for index in range(9)]
    runs = Experiments(Loop(Plain()), claim(), data)
    for index, (tokens, _) in enumerate(data):
        for item in (runs.moved(index), runs.other(index)):
            assert len(item[0]) == len(tokens)
            assert item[1] != index


def test_inputs_that_are_arrays_are_put_out_of_range_and_token_ids_are_not() -> None:
    pixels, tokens = np.ones(3, np.float32), np.arange(3)
    assert scaled(pixels, 30.0).tolist() == [30.0, 30.0, 30.0]
    assert scaled(pixels, 30.0).dtype == np.float32
    assert scaled(tokens, 30.0) is tokens


def test_arrays_of_other_libraries_are_releases() -> None:
    class Array:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return np.array([1.5, -2.0], dtype)

    (first,), second = tensors_in(Array()), tensors_in({"bias": Array(), "scale": 2.0})
    assert first.tolist() == [1.5, -2.0]
    assert [each.tolist() for each in second] == [[1.5, -2.0], 2.0]


class WholeBatchClipped(Plain):
    """Clips the mean gradient of the batch, and adds noise of a standard deviation of σC/√B."""

    def summed(self, model: nn.Module, data: Any, places: list[int]) -> torch.Tensor:
        mean = self.gradients(model, data, places).sum(0) / max(1, len(places))
        return mean * (loops.CLIP / mean.norm().clamp(min=1e-12)).clamp(max=1)

    def released(self, total: torch.Tensor, size: int) -> torch.Tensor:
        return total + self.noise(total) / loops.BATCH**0.5


def test_no_more_is_said_of_large_noise_than_that_it_is_large() -> None:
    """It is more than what is declared, and less than what one example of a batch can move."""
    found = {each.name: each.said for each in judged(WholeBatchClipped(), claim()).refuted_by}
    assert "apart" in found
    assert "times the one declared" in found["sensitivity"]
    assert "privacy holds" not in found["sensitivity"]


def test_an_epsilon_that_is_too_small_is_refuted() -> None:
    true = claim()
    assert true.epsilon is not None
    assert refuted_by(judged(Plain(), replace(true, epsilon=true.epsilon * 0.9))) == {"accounting"}


def test_what_a_claim_leaves_open_is_named_by_the_checks_that_need_it() -> None:
    result = judged(Plain(), Claim(clip_norm=1.0))
    assert "epsilon, noise_multiplier" in skipped(result)["accounting"]
    assert "noise_multiplier" in skipped(result)["sensitivity"]
    assert "epsilon and delta" in skipped(result)["canaries"]
    assert "noise" not in skipped(result)


def test_a_black_box_is_attacked_by_what_it_publishes_alone() -> None:
    def published(data: Any) -> nn.Module:
        return Plain()(data, lambda values: values)

    result = judged(published, claim())
    assert not result.refuted_by
    assert {each.name for each in result.checks} == {"accounting", "training", "canaries"}
    assert "record" in skipped(result)["noise"]


def test_a_black_box_that_remembers_its_examples_is_refuted_by_canaries() -> None:
    class Nearest(nn.Module):
        """Answers as the nearest example does."""

        def __init__(self, data: Any) -> None:
            super().__init__()
            inputs, targets = zip(*(data[i] for i in range(len(data))), strict=True)
            self.inputs = nn.Parameter(torch.stack(inputs))
            self.targets = torch.stack(targets)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            distances, nearest = torch.cdist(inputs, self.inputs).min(1)
            answers = 20.0 * nn.functional.one_hot(self.targets[nearest], CLASSES)
            return answers / (1 + distances[:, None])

    result = judge_loop(
        Claim(epsilon=1, delta=1e-6, expected_batch_size=30, steps=40), Nearest, examples()
    )
    assert "canaries" in refuted_by(result)


def test_a_loop_that_takes_a_seed_is_given_one() -> None:
    given = []

    def train(data: Any, seed: int) -> None:
        given.append(seed)

    Loop(train).run(WatchedData(examples()), 7)
    assert given == [7]


def test_reads_are_noted_step_by_step() -> None:
    def train(data: Any, record: Callable[[Any], Any]) -> None:
        for batch in ([1, 2], [], [3, -1]):
            record(torch.stack([torch.zeros(2), *(data[i][0][:2] for i in batch)]).sum(0))

    trace = Loop(train).run(WatchedData(examples(10)), 0)
    assert trace.reads == [[1, 2], [], [3, 9]]


def test_a_run_leaves_the_global_generators_as_they_were() -> None:
    before = torch.random.get_rng_state()
    Loop(Plain()).run(WatchedData(examples()), 3)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("directions", [0, 1, 3])
def test_the_noise_beside_a_few_strong_directions_is_measured_to_a_few_per_cent(
    directions: int,
) -> None:
    draw = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    rows = 0.2 * normal(80, 200) + 5 * normal(80, directions) @ normal(directions, 200)
    seen = measured(rows, 80)
    assert seen is not None
    assert seen.deviation == pytest.approx(0.2, rel=0.03)


def test_what_examples_add_to_a_few_numbers_is_not_taken_for_noise() -> None:
    draw = torch.Generator().manual_seed(1)
    noise = torch.randn(80, 2, generator=draw, dtype=torch.float64)
    seen = measured(noise, 80)
    assert seen is not None
    assert seen.deviation == pytest.approx(1, rel=0.2)
    assert measured(noise + 30 * torch.randn(80, 1, generator=draw), 80) is None


@pytest.mark.parametrize("width", [2, 3, 5, 10, 40])
def test_fresh_noise_is_not_taken_for_repeated_noise_however_few_numbers_there_are(
    width: int,
) -> None:
    draw = torch.Generator().manual_seed(width)
    rows = torch.randn(80, width, generator=draw, dtype=torch.float64)
    seen = measured(torch.cat([rows, rows[:1]]), 81)
    fresh = measured(rows, 80)
    assert fresh is not None
    assert seen is not None
    assert fresh.repeated <= _repeats(80, width) + 1e-9
    assert width < 10 or seen.repeated > _repeats(81, width)


@pytest.mark.parametrize("width", [10, 40, 5000])
def test_normal_noise_is_neither_called_light_nor_its_coordinates_alike(width: int) -> None:
    draw = torch.Generator().manual_seed(width)
    rows = torch.randn(80, width, generator=draw, dtype=torch.float64)
    alike, bounded = rows.clone(), rows.sign()
    alike[:, -1] = -rows[:, 0]
    fresh, twin, light = (measured(each, 80) for each in (rows, alike, bounded))
    assert fresh is not None
    assert not problems_of(fresh)
    assert twin is not None
    assert light is not None
    if width <= COMPARED:  # of more numbers, only some are compared
        (said,) = problems_of(twin)
        assert said.startswith("two coordinates have noise that correlates by 1.00")
    assert any("not normal" in said for said in problems_of(light))


GOOD = """
import sys
sys.path.insert(0, {folder!r})
import loops

claim, data, train = loops.claim(), loops.examples(), loops.{kind}()
"""


def judge_command(tmp_path: Path, text: str) -> int:
    file = tmp_path / "loop.py"
    file.write_text(text)
    words = ["judge", "--loop", str(file), "--level", "quick", "--out", str(tmp_path)]
    return int(program.main(words, standalone_mode=False) or 0)


def written(kind: str) -> str:
    return GOOD.format(folder=str(Path(loops.__file__).parent), kind=kind)


def test_the_command_writes_a_page_and_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge_command(tmp_path, written("Plain")) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("loop.py: not refuted")
    result = json.loads((tmp_path / "judgement.json").read_text())
    assert result["verdict"] == "not refuted"
    assert (tmp_path / "judgement.pdf").read_bytes().startswith(b"%PDF")


def test_the_last_line_says_what_refutes_a_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge_command(tmp_path, written("HalfNoise")) == 1
    assert "refuted: sensitivity: one example moves" in capsys.readouterr().out.splitlines()[-1]


def shown() -> str:
    """Return the loop that the documentation shows."""
    page = (Path(__file__).parents[2] / "docs" / "test-your-code.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_loop_of_the_documentation_is_not_refuted(tmp_path: Path) -> None:
    assert judge_command(tmp_path, shown()) == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_loop_of_the_documentation_is_refuted_with_half_of_its_noise(tmp_path: Path) -> None:
    text = shown().replace("        noise_multiplier=1.1", "        noise_multiplier=0.55")
    assert text != shown()
    assert judge_command(tmp_path, text) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claim = 3", "claim: required"),
        ("from clipnoise.audit import Claim\nclaim = Claim(steps=3)", "train: required"),
        (
            "from clipnoise.audit import Claim\nclaim = Claim(steps=0)\ndef train(data): pass",
            "claim.steps",
        ),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        (
            "from clipnoise.audit import Claim\nclaim = Claim(steps=3)\n"
            "def train(data, record):\n    1 / 0",
            "loop.py:4: the loop failed: ZeroDivisionError",
        ),
        (
            "from clipnoise.audit import Claim\nclaim = Claim(steps=3)\ndef train(data): pass",
            "nothing of the claim can be checked",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        judge_command(tmp_path, text)


def test_a_release_that_changes_its_length_is_a_mistake() -> None:
    def train(data: Any, record: Callable[[Any], Any]) -> None:
        record(torch.zeros(FEATURES))
        record(torch.zeros(FEATURES + 1))

    with pytest.raises(UserError, match="the release of step 2 has 17 numbers"):
        judged(train, claim())
