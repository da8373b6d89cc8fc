"""What tuning bought: the expected best score against the number of tried settings."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_search

from hifi_cli.config.figure_spec import read_record
from hifi_cli.errors import MissingError
from hifi_cli.figures import figure, search_budget


@pytest.mark.parametrize("scores", [[0.3], [0.1, 0.9], [0.5, 0.5, 0.2], [0.2, 0.7, 0.7, 0.1], [0.31, 0.62, 0.11, 0.97, 0.62]])
def test_expected_best_by_enumerating_every_sample(scores):
    """All N^n equally likely draws of n of the N settings, with replacement."""
    found = search_budget.expected_maximum(scores).to_numpy().tolist()
    assert len(found) == len(scores)
    for count in range(1, len(scores) + 1):
        best = [max(sample) for sample in product(scores, repeat=count)]
        mean, *quartiles = found[count - 1]
        assert mean == pytest.approx(math.fsum(best) / len(best), abs=1e-12)
        assert quartiles == [np.quantile(best, share, method="inverted_cdf") for share in (0.25, 0.75)]


def test_the_figure_shows_a_search(ask, resources, encoders, tmp_path):
    request, csv = ask("search-budget", None, ("full-ft", "bitfit")), tmp_path / "budget.csv"
    with pytest.raises(MissingError, match="no runs of a search for full-ft on rte"):
        figure.compute(request, csv)
    for method, scores in {"full-ft": [0.6, 0.8, 0.7], "bitfit": [0.9, None]}.items():
        write_search(resources.results_dir, method, "rte", scores, backbone=encoders["bert"].name)
    request = ask("search-budget", None, ("full-ft", "bitfit"))
    figure.compute(request, csv)
    table, notes = pd.read_csv(csv), read_record(csv).notes
    assert [*zip(table["method"], table["settings"], strict=True)] == [
        *(("full-ft", count) for count in (1, 2, 3)),
        ("bitfit", 1),
    ]
    assert table["mean"].tolist() == pytest.approx([0.7, 6.7 / 9, 20.7 / 27, 0.9])  # a diverged setting has no score
    assert notes[-1] == "bitfit on rte: 1 setting diverged, left out without a score"
    figure.draw(csv, tmp_path / "budget.svg")
    text = (tmp_path / "budget.svg").read_text()
    assert all(word in text for word in ("tried settings", "expected best score", "Full-FT", "BitFit"))
