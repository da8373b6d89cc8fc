"""The bench of head rankings: correlations within layers, and the scores of the runs that are there."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hifi_cli.config.figure_spec import read_record
from hifi_cli.figures import figure, head_bench
from hifi_cli.heads.ranking import Ranked
from hifi_cli.results.directory import RunDirectory
from hifi_cli.training import run as runs

METHODS = ("hifi-layerwise", "hifi-wo-corr", "hifi-gradient", "hifi-random", "bitfit")


def test_correlations_are_means_over_the_layers_of_what_is_preferred():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3, 8))
    ranked = [Ranked(values) for values in first]
    lowest = [Ranked(values, lowest_first=True) for values in second]
    taus = [-stats.kendalltau(own, other).statistic for own, other in zip(first, second, strict=True)]
    assert head_bench.rank_correlation(ranked, lowest, "kendall")["value"] == pytest.approx(np.mean(taus))
    rhos = [-stats.spearmanr(own, other).statistic for own, other in zip(first, second, strict=True)]
    assert head_bench.rank_correlation(ranked, lowest, "spearman")["value"] == pytest.approx(np.mean(rhos))
    flat = [Ranked(np.ones(8)), *ranked[1:]]  # a layer without an order says nothing
    assert head_bench.rank_correlation(flat, lowest, "kendall")["value"] == pytest.approx(np.mean(taus[1:]))
    of_two = head_bench.rank_correlation(ranked[1:], lowest[1:], "kendall")["noise"]
    assert head_bench.rank_correlation(flat, lowest, "kendall")["noise"] == of_two  # a mean over two layers varies more
    assert np.isnan(head_bench.rank_correlation(flat[:1], lowest[:1], "kendall")["value"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kendall", "spearman"])
def test_95_percent_of_unrelated_rankings_stay_below_the_noise(kind):
    rng = np.random.default_rng(0)
    statistics = [
        head_bench.rank_correlation(*([Ranked(values) for values in rng.normal(size=(4, 8))] for _ in range(2)), kind)
        for _ in range(1000)
    ]
    below = np.mean([abs(values["value"]) < values["noise"] for values in statistics])
    assert 0.93 < below < 0.97


@pytest.mark.slow
def test_runs_are_optional_and_those_that_are_there_are_shown(ask, resources, tmp_path):
    path = tmp_path / "bench.csv"

    def computed():
        request = ask("head-bench", None, METHODS, (1, 2))
        figure.compute(request, path, force=True)
        figure.draw(path, path.with_suffix(".png"))
        return request, pd.read_csv(path), read_record(path).notes

    request, table, notes = computed()
    assert set(table["panel"]) == {"correlation"} and len(table) == 4 * 3 / 2
    assert {*table["label"], *table["other_label"]} == {"pagerank", "richness", "gradient", "random"}
    assert any("10 of 10 runs are missing" in note for note in notes)
    trained = [cell for cell in request.cells() if cell.method in ("bitfit", "hifi-random")]
    results = [runs.run(cell.config, resources) for cell in trained]
    _, table, notes = computed()
    scores = table[table["panel"] == "score"]
    assert list(scores["label"]) == ["random", "random", "BitFit", "BitFit"]
    assert sorted(scores["score"]) == pytest.approx(sorted(result.score() for result in results))
    assert any("6 of 10 runs are missing" in note for note in notes)


def test_a_diverged_run_is_left_out_and_counted(ask, resources, tmp_path):
    settings = ("learning_rate=1e30", "max_grad_norm=null", "warmup=0", "log_every=1")
    request = ask("head-bench", None, ("full-ft", "hifi-random"), (1,), *settings)
    config = request.cells()[0].config
    assert runs.run(config, resources).status == "diverged"
    assert RunDirectory.of(config, resources.results_dir).results.is_file()
    assert head_bench.compute(request).empty
    assert any("1 runs ended without a score" in note for note in request.notes)
