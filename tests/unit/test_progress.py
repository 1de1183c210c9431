"""The progress display counts jobs and estimates the remaining time."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from snakemake_logger_plugin_clipnoise import Progress, clock, panel, summary


@pytest.fixture
def progress() -> Progress:
    """Two jobs at a time, 10 s each: two trained, two of eight training for 4 s, one report."""
    progress = Progress()
    progress.plan({"train": 8, "report": 1, "total": 9})
    for number, moment in [(1, 100.0), (2, 100.0), (3, 110.0), (4, 110.0)]:
        progress.start(number, "train", f"seed={number}", moment)
    progress.finish(1, 110.0)
    progress.finish(2, 110.0)
    return progress


def test_what_is_left_takes_as_long_as_what_is_done(progress: Progress) -> None:
    # 6 training jobs and 1 unseen report at 10 s each, 8 s of it spent, two side by side
    assert progress.remaining(114.0) == pytest.approx((70 - 8) / 2)
    assert progress.elapsed(114.0) == 14
    assert summary(progress, 114.0) == "2 of 9 jobs done, 14 s so far, about 31 s left"


def test_the_time_of_a_rule_is_estimated_from_its_own_jobs(progress: Progress) -> None:
    progress.start(9, "report", "", 110.0)
    progress.finish(9, 140.0)
    progress.plan({"train": 8, "report": 2})
    # side by side: 50 s of finished jobs and 2 × 30 s of running ones within 40 s
    work = 6 * 10 + 1 * 30 - 2 * 10  # the running ones are overdue
    assert progress.remaining(140.0) == pytest.approx(work / (110 / 40))


def test_nothing_is_estimated_before_the_first_job_is_done() -> None:
    progress = Progress()
    progress.plan({"train": 2})
    progress.start(1, "train", "", 5.0)
    assert progress.remaining(9.0) is None
    assert summary(progress, 9.0) == "0 of 2 jobs done, 4 s so far"


def test_an_overdue_job_takes_nothing_from_what_the_others_need(progress: Progress) -> None:
    assert progress.remaining(1000.0) == pytest.approx((4 * 10 + 10) / 2, rel=0.02)


def test_nothing_is_estimated_from_the_few_jobs_that_come_first() -> None:
    progress = Progress()
    progress.plan({"calibrate": 2, "train": 100, "report": 1})
    progress.start(1, "calibrate", "", 0.0)
    progress.finish(1, 130.0)
    assert progress.remaining(131.0) is None
    progress.start(2, "train", "", 131.0)
    progress.finish(2, 132.0)
    assert progress.remaining(132.0) == pytest.approx(99 * 1 + 130 + 65.5, rel=0.01)


def test_jobs_of_unseen_kinds_are_expected_to_be_shorter_or_longer_by_their_work() -> None:
    progress = Progress()
    progress.plan({"train": 12})
    progress.kinds = Counter({("train", 80): 2, ("train", 40): 10})
    progress.start(1, "train", "", 0.0, 80)
    progress.finish(1, 200.0)
    assert progress.remaining(200.0) == pytest.approx(200 + 10 * 200)  # none is shorter than any
    progress.start(2, "train", "", 200.0, 40)
    progress.finish(2, 202.0)
    assert progress.remaining(202.0) == pytest.approx(200 + 9 * 2)
    progress.kinds = Counter({("train", 80): 2, ("train", 40): 1, ("train", 60): 9})
    assert progress.remaining(202.0) == pytest.approx(200 + 9 * 20)


def test_the_estimate_follows_a_machine_that_becomes_slower() -> None:
    progress, now = Progress(), 0.0
    progress.plan({"train": 200})
    for number, seconds in enumerate([1.0] * 50 + [4.0] * 100):
        progress.start(number, "train", "", now)
        now += seconds
        progress.finish(number, now)
    assert progress.remaining(now) == pytest.approx(50 * 4)


def test_the_estimate_does_not_follow_one_method_after_the_other() -> None:
    """Methods of 1 s and of 3 s take turns, 20 jobs each, and all are of one size."""
    progress, now, errors = Progress(), 0.0, []
    times = ([1.0] * 20 + [3.0] * 20) * 10
    progress.plan({"train": len(times)})
    for number, seconds in enumerate(times[:-40]):
        progress.start(number, "train", "", now)
        now += seconds
        progress.finish(number, now)
        if number >= 80:
            left = progress.remaining(now)
            assert left is not None
            errors.append(left / sum(times[number + 1 :]))
    assert 0.75 < min(errors) <= max(errors) < 1.33


def test_a_failed_job_counts_as_failed_and_runs_no_longer(progress: Progress) -> None:
    progress.fail(3)
    assert list(progress.running) == [4]
    assert "1 failed" in summary(progress, 114.0)
    progress.start(3, "train", "again", 115.0)
    progress.finish(3, 120.0)
    assert progress.done == 3


def test_the_end_of_a_job_whose_start_was_not_seen_is_ignored(progress: Progress) -> None:
    assert progress.finish(77, 120.0) is None
    assert progress.done == 2


def test_the_panel_names_what_runs_and_what_is_left(progress: Progress) -> None:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(panel(progress, 114.0))
    shown = capture.get()
    assert "train  seed=3  4 s" in shown
    assert "seed=1" not in shown
    assert "about 31 s left" in shown
    assert "left: train 6, report 1" in shown


@pytest.mark.parametrize("label", ["[red]a[/red]", "[/]", "[link=https://example.org]b[/link]"])
def test_a_label_is_shown_as_it_is(label: str) -> None:
    progress = Progress()
    progress.plan({"train": 1})
    progress.start(1, "train", label, 0.0)
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(panel(progress, 1.0))
    assert f"train  {label}  1 s" in capture.get()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00"), (65, "1:05"), (7384, "2:03:04")]
)
def test_times_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
