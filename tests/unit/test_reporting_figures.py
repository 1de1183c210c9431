"""Figures: consistent looks, labels that name what is drawn, and visible gaps."""

from __future__ import annotations

import html
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from reporting_data import (
    FILTERS,
    curve_rows,
    draw_figure,
    drawn,
    item_data,
    quickstart,
    run_row,
    write_table,
)
from scipy import signal, stats

from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.methods.base import example, methods
from clipnoise.report.figures.canvas import Series, legend, look, sheet
from clipnoise.report.figures.momentum import momentum_reduction
from clipnoise.report.figures.styles import COLOURS, LOOKS, style
from clipnoise.report.kinds.filter_sweep import frequency_response, noise_gain
from clipnoise.report.records import read_curves, read_runs
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.items import ReportItem
from clipnoise.studies.study import find_study, names_below

STUDIES = Path(__file__).parents[2] / "workflow" / "studies"


@pytest.fixture
def draw(tmp_path):
    def figure(kind, rows, panel="comparison", **more):
        runs = write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows)
        curves = write_table(tmp_path / "curves.parquet", CURVE_COLUMNS, curve_rows(rows))
        data = item_data(kind, read_runs(runs), read_curves(curves), panels=(panel,), **more)
        return draw_figure(data).decode()

    return figure


def few(**changes):
    return [run_row(seed=i, test_accuracy=0.9 + 0.01 * i, **changes) for i in (1, 2, 3)]


def texts(svg: str) -> list[str]:
    """Return the texts of a figure; matplotlib notes each beside its outlines."""
    return [html.unescape(found) for found in re.findall(r"<!-- (.*?) -->", svg)]


# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision
# Deficiency, 2009, severity 1.
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413]]
DEUTERANOPIA += [[-0.011820, 0.042940, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216]]
PROTANOPIA += [[-0.003882, -0.048116, 1.051998]]
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750]]
XYZ += [[0.0193339, 0.1191920, 0.9503041]]


def lab(colour: str, vision) -> np.ndarray:
    """Return CIELAB coordinates of a colour as seen with a colour vision deficiency."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(vision @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", [np.eye(3), np.array(DEUTERANOPIA), np.array(PROTANOPIA)])
def test_colours_stay_apart_for_every_kind_of_sight(vision):
    colours = sorted({style(name).colour for name in LOOKS})
    for one, other in itertools.combinations(colours, 2):
        assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 10, (one, other)


def test_every_method_has_a_distinct_marker_and_line_for_grey_print():
    looks = {name: (style(name).marker, style(name).dash) for name in methods()}
    shared = [pair for pair in itertools.combinations(looks, 2) if looks[pair[0]] == looks[pair[1]]]
    assert not shared


@pytest.mark.long
def test_methods_that_a_study_compares_differ_in_colour_while_colours_last():
    for name in names_below(STUDIES):
        for title, panel in find_study(name, STUDIES).panels.items():
            shown = {method.id for method in panel.each_method}
            looks = [style(id_) for id_ in sorted(shown) if example(methods()[id_]).private]
            assert len(set(looks)) == len(looks), (name, title)
            if len(looks) <= len(COLOURS):
                assert len({look.colour for look in looks}) == len(looks), (name, title)


def test_giving_one_method_a_look_changes_no_other_look(monkeypatch):
    names = [*LOOKS, "a-new-method"]
    before = {name: style(name) for name in names}
    assert (before["a-new-method"].colour, before["a-new-method"].marker) == ("#56B4E9", "v")
    monkeypatch.setitem(LOOKS, "another-new-method", (COLOURS[0], "o", ()))
    assert {name: style(name) for name in names} == before


def test_variants_of_a_method_differ_in_colour_and_in_marker():
    variants = [style("lp-dpsgd", number) for number in range(7)]
    assert len({one.colour for one in variants}) == 7
    assert len({one.marker for one in variants}) == 7


def test_a_long_label_makes_no_axis_title_longer_than_its_axis(tmp_path):
    label = "a baseline with a label that is rather long"
    rows = [
        run_row(method=method, label=name, budget=budget, seed=seed, test_accuracy=0.8 + seed / 99)
        for method, name in (("dp-sgd", label), ("dp-adam", "dp-adam"))
        for budget in ("eps=1", "eps=8")
        for seed in (1, 2, 3)
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    curves = read_curves(write_table(tmp_path / "curves.parquet", CURVE_COLUMNS, []))
    data = item_data("accuracy-vs-epsilon", runs, curves, panels=("comparison",))
    figure = data.item.draw(data)
    figure.canvas.draw()
    for ax in figure.axes:
        assert ax.yaxis.label.get_window_extent().height <= ax.get_window_extent().height


def test_noise_gain_of_one_pole_is_b_squared_over_1_minus_a_squared():
    assert noise_gain([-0.9], [0.1]) == pytest.approx(0.01 / 0.19, rel=1e-12)
    assert noise_gain([-0.99], [0.01]) == pytest.approx(1e-4 / (1 - 0.9801), rel=1e-10)


def test_noise_gain_without_feedback_is_the_sum_of_squares():
    assert noise_gain([], [1.0]) == 1.0
    assert noise_gain([], [0.5, 0.25, 0.25]) == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("a", "b"), [([-0.9], [0.15, -0.05]), ([-0.5, 0.1], [0.6]), ([-1.2, 0.4], [0.1, 0.05, 0.05])]
)
def test_noise_gain_is_the_energy_of_the_impulse_response(a, b):
    impulse = np.zeros(4000)
    impulse[0] = 1.0
    response = signal.lfilter(b, [1.0, *a], impulse)
    assert noise_gain(a, b) == pytest.approx(float(np.sum(response**2)), rel=1e-10)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_noise_gain_and_response_are_those_of_the_normalised_filter(scale):
    a, b, frequencies = [-0.9], [0.15, -0.05], np.linspace(0, 0.5, 5)
    scaled = [scale * one for one in b]
    assert noise_gain(a, scaled) == pytest.approx(noise_gain(a, b))
    responses = [frequency_response(a, taps, frequencies) for taps in (b, scaled)]
    np.testing.assert_allclose(*responses)


@pytest.mark.parametrize(("beta", "history"), [(0.1, 2), (0.9, 6), (0.0, 3), (0.5, 1)])
def test_momentum_divides_the_deviation_of_independent_noise_by_rho(beta, history):
    weights = np.array([beta**j for j in range(history)])
    weights /= weights.sum()
    rho = momentum_reduction(beta, history)
    assert np.square(weights).sum() == pytest.approx(1 / rho**2)
    printed = (1 + beta) * (1 - beta**history) / ((1 - beta) * (1 + beta**history))
    assert rho**2 == pytest.approx(printed)


def test_momentum_of_equal_weights_divides_by_the_root_of_their_number():
    assert momentum_reduction(1.0, 5) == pytest.approx(math.sqrt(5))


def test_an_unstable_filter_has_infinite_gain():
    assert math.isinf(noise_gain([-1.0], [0.1]))
    assert math.isinf(noise_gain([0.2, 1.5], [1.0]))
    assert math.isinf(noise_gain([], [1.0, -1.0])), "nothing of a constant is left"


@pytest.mark.parametrize(("a", "b"), FILTERS.values())
def test_frequency_response_is_that_of_the_recursion(a, b):
    frequencies = np.linspace(0, 0.5, 26)
    _, expected = signal.freqz(b, [1.0, *a], worN=2 * np.pi * frequencies)
    np.testing.assert_allclose(frequency_response(a, b, frequencies), np.abs(expected), rtol=1e-10)
    assert frequency_response(a, b, frequencies)[0] == pytest.approx(1.0)


def test_accuracy_against_epsilon_names_axes_units_methods_and_references(draw):
    rows = [*few(), *few(budget="eps=8"), *few(method="sgd", budget="non-private")]
    found = texts(draw("accuracy-vs-epsilon", rows))
    assert {"Privacy budget ε", "Test accuracy (%)", "dp-sgd", "sgd (non-private)"} <= set(found)
    assert {"1", "8", "digits, logistic"} <= set(found)


def test_paired_differences_to_dp_sgd_stand_beside_the_lines_with_their_intervals(tmp_path):
    levels = {"dp-sgd": (0.80, 0.82, 0.81), "dp-adam": (0.83, 0.84, 0.85)}
    rows = [
        run_row(method=method, seed=seed, test_accuracy=value)
        for method, values in levels.items()
        for seed, value in enumerate(values)
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    _, beside = drawn("accuracy-vs-epsilon", runs).axes
    assert beside.get_ylabel().split() == ["Better", "than", "dp-sgd", "by", "(points)"]
    assert "95% intervals" in beside.get_title()
    marks = [line.get_ydata() for line in beside.lines]
    low, high = stats.ttest_1samp([3, 2, 4], 0).confidence_interval(0.95)
    np.testing.assert_allclose(marks[0], [3.0])
    np.testing.assert_allclose(marks[1], [low, high])
    alone = runs[runs["method"] == "dp-sgd"]
    assert len(drawn("accuracy-vs-epsilon", alone).axes) == 1


def test_a_run_without_a_target_is_plotted_at_the_epsilon_it_achieved(draw):
    found = texts(draw("accuracy-vs-epsilon", few(budget="sigma=0.5", epsilon_achieved=3.25)))
    assert "3.25" in found


@pytest.mark.quick(kind=["ablation", "curves"])
@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"])
def test_a_part_of_references_alone_is_drawn(draw, kind):
    rows = [*few(method="sgd", budget="non-private"), *few(method="adam", budget="non-private")]
    assert "Test accuracy (%)" in texts(draw(kind, rows))


def test_curves_have_a_panel_per_model_and_budget(draw):
    rows = [*few(), *few(budget="eps=8"), *few(model="cnn"), *few(model="cnn", budget="eps=8")]
    found = set(texts(draw("curves", rows)))
    titles = {f"digits, {m}, ε = {e}" for m in ("logistic", "cnn") for e in (1, 8)}
    assert {"Step", "Test accuracy (%)", *titles} <= found


def test_curves_show_the_metric_that_they_name(draw):
    assert {"Step", "Training loss"} <= set(texts(draw("curves", few(), metric="train_loss")))
    assert {"Step", "Test loss"} <= set(texts(draw("curves", few(), metric="test_loss")))
    with pytest.raises(UserError, match="metric: unknown key"):
        parse(ReportItem, {"kind": "ablation", "metric": "train_loss"})


def test_ablation_labels_its_variants_directly(draw):
    rows = [*few(label="neither", panel="ablation"), *few(label="both of 'em", panel="ablation")]
    found = set(texts(draw("ablation", rows, "ablation")))
    assert {"neither", "both of 'em", "Test accuracy (%)", "digits, logistic, ε = 1"} <= found


def test_filter_sweep_shows_the_noise_gain_of_every_filter(draw):
    rows = [row for row in quickstart() if row["panel"] == "filters"]
    found = set(texts(draw("filter-sweep", rows, "filters")))
    assert {"Noise gain", "Variance factor Σκ̂²", "Amplitude (dB)", *FILTERS} <= found
    assert {"Frequency (cycles per step)", "1", "0.333", "0.0526", "0.0605", "0.00503"} <= found


@pytest.mark.quick(kind=["ablation", "curves"])
@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"])
def test_incomplete_runs_are_counted_in_the_figure(draw, kind):
    rows = [*few(), *few(method="dp-adam")]
    rows += [run_row(seed=4), run_row(seed=4, method="dp-adam", status="diverged")]
    assert any("3/4 runs" in text for text in texts(draw(kind, rows)))


@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"])
def test_a_figure_without_data_says_so(draw, kind):
    assert texts(draw(kind, [])) == ["comparison: no completed run (0/0)"]
    rows = [run_row(seed=i, status="missing") for i in (1, 2)]
    assert texts(draw(kind, rows)) == ["comparison: no completed run (0/2)"]


@pytest.mark.quick(kind=["ablation", "curves"])
@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"])
def test_a_panel_without_data_says_so(draw, kind):
    rows = [*few(), *(run_row(seed=i, model="cnn", status="diverged") for i in (1, 2))]
    assert "no completed run" in texts(draw(kind, rows))


def test_a_nominal_epsilon_is_named_beside_the_method(draw):
    assert "dp-sgd (nominal ε)" in texts(draw("accuracy-vs-epsilon", few(claim="nominal")))


def test_labels_are_drawn_as_they_are_written(draw):
    label = r"$\alpha$ 100% <b>_x_"
    assert label in texts(draw("ablation", few(label=label)))


@pytest.mark.quick(kind=["ablation", "curves"])
@pytest.mark.parametrize("kind", ["accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"])
def test_the_same_tables_give_the_same_bytes(draw, kind):
    rows = [*few(), *few(method="dp-adam")]
    assert draw(kind, rows) == draw(kind, rows)


def test_drawing_leaves_other_peoples_settings_alone(draw):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    draw("ablation", few())
    assert dict(mpl.rcParams) == before


def test_a_long_legend_makes_a_figure_higher_and_keeps_the_axes() -> None:
    heights = []
    for count in (4, 30):
        named = [f"method {number} of many" for number in range(count)]
        with look():
            figure, axes = sheet(1, 1, height=2.4)
            legend(figure, [Series("dp-sgd", name, True, style("dp-sgd", 0)) for name in named])
            figure.draw_without_rendering()
        heights.append(axes[0, 0].get_position().height * figure.get_figheight())
        entries = figure.legends[0].get_window_extent()
        assert 0 <= entries.x0 < entries.x1 <= figure.bbox.width
    assert heights[1] > 0.9 * heights[0]
