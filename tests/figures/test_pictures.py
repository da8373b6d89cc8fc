"""Pictures show the numbers of their CSV, each at its place: read back from what matplotlib draws."""

from itertools import product

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer

from hifi_cli.drawing.style import SETTINGS
from hifi_cli.figures import heads, models
from hifi_cli.figures.forest import Forest
from hifi_cli.figures.scores import Scores
from hifi_cli.figures.sweep import SearchBudget

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _style():
    with mpl.rc_context(SETTINGS):
        yield


def drawn(kind, rows, **columns):
    """The panels of a picture, by their titles."""
    figure = kind.draw(pd.DataFrame(rows).assign(**columns))
    return {ax.get_title(): ax for ax in figure.axes}


def points(line):
    return list(zip(*map(list, line.get_data()), strict=True))


def lines_of(ax):
    """The points of each line by its label."""
    return {line.get_label(): points(line) for line in ax.lines}


def ends_of_band(ax, number=0):
    """The lowest and the highest point of a band of a panel."""
    (path,) = ax.collections[number].get_paths()
    heights = path.vertices[:, 1]
    return [heights.min(), heights.max()]


def test_bars_are_means_over_seeds_of_each_method_from_the_top():
    rows = [
        {"method": method, "label": label, "seed": seed, "mean": mean, "std": 9.0}
        for method, label, means in (("lora", "LoRA", (3, 5)), ("full-ft", "Full-FT", (1, 2)))
        for seed, mean in enumerate(means)
    ]
    ax = drawn(models.Features(), rows, task="rte", pair="pretrained-tuned")[""]
    (bars,) = [container for container in ax.containers if isinstance(container, BarContainer)]
    assert [bar.get_width() for bar in bars] == [4, 1.5]
    ends = np.array(bars.errorbar.lines[2][0].get_segments())[:, :, 0]
    np.testing.assert_allclose(np.diff(ends)[:, 0] / 2, [2**0.5, 0.5**0.5])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["LoRA", "Full-FT"]
    assert [text.get_text() for text in ax.texts] == ["4.00", "1.50"]
    low, high = ax.get_ylim()
    assert low > high


def test_curves_are_running_means_of_the_last_stage():
    rows = []
    for seed, stage, step in product((1, 2), (1, 2), range(1, 41)):
        loss = step + 2 * seed if stage == 2 else 1000
        rows.append({"seed": seed, "stage": stage, "stage_step": step, "loss": loss})
    two_stages = pd.DataFrame(rows).assign(
        method="lp-ft", label="LP-FT", stage1_fraction=0.1, head_gradient=3.0, backbone_gradient=2.0
    )
    one_stage = pd.DataFrame(rows[:40]).assign(
        method="full-ft",
        label="Full-FT",
        stage1_fraction=0.0,
        head_gradient=4.0,
        backbone_gradient=3.0,
    )
    longer = two_stages.assign(stage1_fraction=0.3)
    data = pd.concat([two_stages, longer, one_stage])
    panels = drawn(models.TrainingCurves(), data, task="rte")
    assert [*lines_of(panels["training loss"])] == [
        "LP-FT, 10 % stage 1",
        "LP-FT, 30 % stage 1",
        "Full-FT",
    ]
    # 5 % of 40 points are two of them; the mean of the seeds at a step is step + 3.
    expected = [(1, 4), *((step, step + 2.5) for step in range(2, 41))]
    of_loss = lines_of(panels["training loss"])
    assert of_loss["LP-FT, 10 % stage 1"] == expected
    assert of_loss["Full-FT"][-1] == (40, 1000)
    assert len({line.get_linestyle() for line in panels["training loss"].lines[:2]}) == 2
    for part, norm in (("head", 4), ("backbone", 3)):
        ax = panels[f"gradient norm, {part}"]
        assert ax.get_yscale() == "log" and lines_of(ax)["Full-FT"][-1] == (40, norm)
    assert panels["training loss"].get_yscale() == "linear"


def test_the_titles_of_maps_have_means_over_seeds():
    row = {"task": "cb", "head": "Random", "metric": "accuracy", "label": "a"}
    rows = []
    for split, score, silhouette in (("dev", 0.2, 0.1), ("train", 0.5, 0.3)):
        place = {"split": split, "x": 1.0, "y": 2.0}
        first = {**row, **place, "seed": 1, "score": score, "silhouette": silhouette}
        # The first seed has a row for each of its points, and the second has no point.
        second = {"seed": 2, "score": score + 0.4, "silhouette": silhouette + 0.2}
        rows += [first, first, first, {**first, **second, "x": None, "y": None}]
    panels = drawn(models.Tsne(), rows)
    assert [*panels] == [
        "Random head, train\naccuracy 70 %, silhouette 0.40",
        "Random head, dev\naccuracy 40 %, silhouette 0.20",
    ]
    assert all(lines_of(ax) == {"a": [(1, 2)] * 3} for ax in panels.values())


def test_a_landscape_is_that_of_the_first_seed():
    rows = []
    for seed in (1, 2):
        for x, y in product((-seed, 0, seed), (-10, 0, 10)):
            rows.append({"part": "contour", "x": x, "y": y, "loss": x + y / 100, "seed": seed})
        for x, y in ((seed, 10), (0, 0)):
            rows.append({"part": "trajectory", "x": x, "y": y, "loss": None, "seed": seed})
    columns = {"task": "rte", "label": "Full-FT", "regime": "16-shot", "method": "full-ft"}
    ax = drawn(models.Landscape(), rows, **columns)["Full-FT, 16-shot"]
    way, star = ax.lines
    assert points(way) == [(1, 10), (0, 0)] and points(star) == [(0, 0)]
    assert ax.get_xlim() == (-1, 1) and ax.get_ylim() == (-10, 10)
    # The loss grows with x, so that the darkest area lies at the right.
    highest = [path for path in ax.collections[0].get_paths() if len(path.vertices)][-1]
    assert highest.vertices[:, 0].min() > 0


def test_richness_has_a_panel_of_each_layer_counted_from_1():
    rows = [
        {"layer": layer, "head": head, "mean": 10 * layer + head, "std": 2.0}
        for layer, head in product(range(8), (0, 1))
    ]
    panels = drawn(heads.Richness(), rows, task="rte", setting="ST")
    assert lines_of(panels["layer 1"]) == {"ST": [(0, 0), (1, 1)]}
    assert lines_of(panels["layer 2"]) == {"ST": [(0, 10), (1, 11)]}
    assert ends_of_band(panels["layer 1"]) == [0, 3]
    assert ends_of_band(panels["layer 2"]) == [8, 13]
    # The lower one of two rows of panels, and the left panels, have the labels of the axes.
    assert [bool(ax.get_xlabel()) for ax in panels.values()] == [*4 * [False], *4 * [True]]
    assert [bool(ax.get_ylabel()) for ax in panels.values()] == 2 * [True, False, False, False]


def test_correlations_are_shown_normalized_in_one_scale():
    rows = [
        {"task": "rte", "head": head, "other": other, "normalized": 0.1 * (head + other)}
        for head, other in product(range(3), range(3))
    ]
    rows += [{**row, "task": "cola", "normalized": 0.5} for row in rows]
    panels = drawn(heads.Correlation(), rows, setting="SL", layer=2)
    assert [*panels][:2] == ["RTE, SL, layer 3", "CoLA, SL, layer 3"]
    ax = panels["RTE, SL, layer 3"]
    (image,) = ax.images
    assert image.get_clim() == (0, 1)
    shown = image.get_array().filled(np.nan)
    np.testing.assert_allclose(shown, [[np.nan, 0.1, 0.2], [0.1, np.nan, 0.3], [0.2, 0.3, np.nan]])


def test_times_of_damping_are_milliseconds_of_a_layer():
    rows = [
        {"damping": damping, "layer": layer, "iterations": 10 + layer, "seconds": 0.001 * layer}
        for damping, layer in product((0.5, 0.9), (1, 2, 6))
    ]
    panels = drawn(heads.Damping(), rows, task="rte")
    time = panels["time of one layer [ms]"]
    np.testing.assert_allclose(lines_of(time)["RTE"], [(0.5, 3), (0.9, 3)])
    assert ends_of_band(time) == pytest.approx([1, 6])
    assert lines_of(panels["iterations"])["RTE"] == [(0.5, 13), (0.9, 13)]
    assert ends_of_band(panels["iterations"]) == [11, 16]


def test_chosen_heads_are_marked_where_a_ranking_tells_heads_apart():
    rows = []
    for ranking, layer, head in product(("pagerank", "pagerank-literal"), (0, 1), range(3)):
        # The first head of the first layer is chosen, and the last one of the second.
        is_chosen = head == 2 * layer
        value = 1.0
        if ranking == "pagerank":
            value = 1.5 if is_chosen else 0.75
        row = {"ranking": ranking, "layer": layer, "head": head}
        rows.append({**row, "value": value, "chosen": is_chosen})
    panels = drawn(heads.HeadRanking(), rows, task="rte")
    ranked = panels["PageRank, transposed"]
    assert ranked.images[0].get_array().tolist() == [[1.5, 0.75, 0.75], [0.75, 0.75, 1.5]]
    # Layers are counted from 1, from the top, as the image is.
    assert points(ranked.lines[0]) == [(0, 1), (2, 2)]
    assert ranked.images[0].get_extent() == [-0.5, 2.5, 2.5, 0.5]
    assert not panels["PageRank as printed"].lines


def test_the_number_of_each_pair_of_rankings_stands_in_its_cell():
    pairs = [("a", "b", 0.25), ("a", "c", -0.75), ("b", "c", -0.1)]
    rows = [{"method": first, "other": second, "value": value} for first, second, value in pairs]
    ax = drawn(heads.HeadBench(), rows, task="rte", noise=0.2)[""]
    written = {text.get_position(): (text.get_text(), text.get_color()) for text in ax.texts}
    assert written == {
        (0, 0): (".25", "black"),
        (0, 1): ("-.75", "white"),
        (1, 1): ("-.10", "#888888"),
    }
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["b", "c"]


def test_a_search_has_its_quartiles_in_percent():
    row = {"task": "rte", "method": "lora", "label": "LoRA", "settings": 1}
    ax = drawn(SearchBudget(), [{**row, "mean": 0.5, "quartile1": 0.25, "quartile3": 0.75}])[""]
    assert lines_of(ax) == {"LoRA": [(1, 50)]} and ends_of_band(ax) == [25, 75]


def test_scores_are_in_rows_from_the_best_mean_rank_on():
    # LoRA is behind on one task by far, and first on two.
    means = {"cola": (60, 20), "rte": (75, 80), "mrpc": (85, 90)}
    rows = []
    for task, of_methods in means.items():
        for method, mean in zip(("full-ft", "lora"), of_methods, strict=True):
            place = {"task": task, "method": method, "label": method.upper()}
            ends = {"mean": mean, "low": mean - 3, "high": mean + 4}
            rows += [{**place, **ends, "score": mean + shift} for shift in (-1, 1)]
    panels = drawn(Scores(), rows, metric="accuracy")
    ax = panels["CoLA (accuracy)"]
    low, high = ax.get_ylim()
    assert low > high
    assert [text.get_text() for text in ax.get_yticklabels()] == ["LORA", "FULL-FT"]
    assert points(ax.lines[2]) == [(60, 1)]
    seeds, interval, mean = map(points, ax.lines[3:6])
    assert (seeds, interval, mean) == ([(19, 0.25), (21, 0.25)], [(17, 0), (24, 0)], [(20, 0)])


def test_differences_are_in_rows_from_the_highest_mean_over_tasks_on():
    differences = {
        ("rte", "lora"): 9,
        ("rte", "bitfit"): -9,
        (None, "bitfit"): 2,
        (None, "lora"): 1,
    }
    rows = [
        {"task": task, "method": method, "label": method.upper(), "difference": difference}
        for (task, method), difference in differences.items()
    ]
    data = pd.DataFrame(rows)
    ends = {"low": data["difference"] - 3, "high": data["difference"] + 4}
    panels = drawn(Forest(), data, reference="Full-FT", **ends)
    assert [*panels] == ["mean over tasks", "RTE"]
    labels = panels["mean over tasks"].get_yticklabels()
    assert [text.get_text() for text in labels] == ["BITFIT", "LORA"]
    ax = panels["RTE"]
    zero, interval, mean = ax.lines[:3]
    assert [*zero.get_xdata()] == [0, 0]
    assert points(interval) == [(6, 1), (13, 1)] and points(mean) == [(9, 1)]
    assert ax.get_xlabel() == "minus Full-FT [points]"
