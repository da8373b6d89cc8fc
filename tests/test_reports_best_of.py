"""A table's row that shows the best of several methods, as EH-FT's top-k does."""

from pathlib import Path

import pytest
from json_output import table_of
from synthetic_runs import write_run

from hifi_cli.grids import cells as cells_of
from hifi_cli.grids import spec as grids

TOP_K = ["top-k", "top-k-6", "top-k-12"]


@pytest.fixture
def runs_of_three(hifi):
    """RTE is best with k = 6, CoLA with k = 3; STS-B's Pearson is not its Spearman."""
    scores = {"top-k": (0.80, 0.60), "top-k-6": (0.85, 0.50), "top-k-12": (0.70, 0.40)}
    for method, (rte, cola) in scores.items():
        for seed, shift in ((1, 0.0), (2, 0.02)):
            share = {
                "params": {"trainable": 10 * (1 + TOP_K.index(method)), "trainable_backbone": 1, "stored": 1, "total": 1000}
            }
            write_run("results", method, "rte", seed, rte + shift, protocol="ehft", backbone="roberta-large", **share)
            write_run("results", method, "cola", seed, cola + shift, protocol="ehft", backbone="roberta-large", **share)
    return hifi


def row_of(answer):
    assert answer.code == 0, answer.err
    content = table_of(answer)
    return content, next(row for row in content["rows"] if row["method"] == "top-k" and row["source"] == "runs")


def test_each_cell_is_the_best_of_the_methods_and_says_which(runs_of_three):
    words = ["table", "ehft-1", "--tasks", "rte,cola", "--methods", "top-k", "--seeds", "1,2", "--format", "json"]
    _, row = row_of(runs_of_three(*words))
    rte, cola = row["cells"]["rte"], row["cells"]["cola"]
    assert (rte["value"], cola["value"]) == pytest.approx((86.0, 61.0))
    assert row["cells"]["average"]["value"] == pytest.approx((86.0 + 61.0) / 2)
    assert rte["notes"] == ["top-k-6, the best of top-k, top-k-6, top-k-12 by the scores shown, which makes it look too good"]
    assert cola["notes"] == ["top-k, the best of top-k, top-k-6, top-k-12 by the scores shown, which makes it look too good"]
    assert "varies" in runs_of_three(*words[:-1], "text").out  # two shares of trained parameters
    alone = runs_of_three(
        "table", "ehft-1", "--tasks", "rte,cola", "--methods", "top-k-12", "--seeds", "1,2", "--format", "json"
    )
    assert table_of(alone)["rows"][0]["cells"]["rte"]["value"] == pytest.approx(71.0)  # a row of its own


def test_what_was_not_run_of_them_is_missing_and_told(hifi):
    write_run("results", "top-k-6", "rte", 1, 0.8, protocol="ehft", backbone="roberta-large")
    content, row = row_of(hifi("table", "ehft-1", "--tasks", "rte", "--methods", "top-k", "--seeds", "1", "--format", "json"))
    assert row["cells"]["rte"]["notes"][-1].endswith("; no run of top-k, top-k-12")
    (missing,) = content["missing"]
    assert missing == "2 runs (Top-k): hifi grid ehft-1 --tasks rte --methods top-k,top-k-6,top-k-12 --seeds 1"
    assert hifi("table", "ehft-1", "--tasks", "rte", "--methods", "top-k", "--seeds", "1", "--strict").code == 1


def test_the_papers_numbers_stand_beside_the_best(runs_of_three):
    content, _ = row_of(
        runs_of_three(
            "table", "ehft-1", "--tasks", "rte", "--methods", "top-k", "--seeds", "1,2", "--published", "--format", "json"
        )
    )
    rows = {row["source"]: row["cells"]["rte"]["value"] for row in content["rows"] if row["method"] == "top-k"}
    assert rows["published"] == 86.55 and rows["difference"] == pytest.approx(86.0 - 86.55)


def test_the_grid_runs_all_of_them_each_with_its_k():
    grid_cells = cells_of.cells(grids.load("ehft-1", {}), "ehft-1")
    settings = {cell.method: cell.config.settings for cell in grid_cells if cell.method.startswith("top-k")}
    assert settings == {"top-k": {"k": 3}, "top-k-6": {"k": 6}, "top-k-12": {"k": 12}}
    assert len(grid_cells) == (12 + 2) * 9 * 4
    assert {cell.config.primary_metric for cell in grid_cells if cell.task == "stsb"} == {"pearson"}


def test_best_of_holds_the_rows_own_method(hifi):
    Path("odd.yaml").write_text("{protocol: hifi, backbone: minilm, rows: [{method: full-ft, best_of: [top-k, bitfit]}]}")
    answer = hifi("table", "odd.yaml")
    assert (
        answer.code == 2 and "best_of must hold the row's method, full-ft" in answer.err and len(answer.err.splitlines()) == 1
    )
