"""Searches: the runs of a grid whose keys vary, grouped by their setting."""

from pathlib import Path

import pytest
import yaml
from json_output import table_of, tables_of
from run_folders import run_folder
from synthetic_grids import cells, write_cell
from synthetic_runs import write_run, write_search

from hifi_cli.records.searches import tried_settings
from hifi_cli.records.study import Study


def test_the_best_setting_of_each_task_and_method(hifi):
    scores = {
        ("full-ft", "rte"): [0.6, 0.7, 0.5],
        ("full-ft", "cola"): [0.4, 0.1, 0.6],
        ("bitfit", "rte"): [0.2, 0.3, 0.1],
        ("lora", "rte"): [0.1, 0.2, 0.3],
        ("lora", "cola"): [0.2, 0.2, None],
    }
    for (method, task), values in scores.items():
        write_search("results", method, task, values)
    write_run("results", "full-ft", "rte", 1, 0.65)  # the usual run, beside which rates were tried
    write_run("results", "full-ft", "rte", 2, 0.99)  # nothing was tried with its seed
    write_run("results", "bitfit", "rte", 1, 0.9, selection="holdout")  # chosen on other rows
    write_run("results", "lora", "rte", 1, 0.99, limited=True)  # on other rows
    table = table_of(hifi("table search --format json"))
    assert table["title"] == "Settings tried (protocol hifi, backbone bert-large)"
    rows: dict[str, list] = {"full-ft": [], "bitfit": [], "lora": []}
    for row in table["rows"]:
        values = [row["cells"][key]["value"] for key in ("rte", "cola", "mean", "best_on")]
        rounded = [round(value, 9) if isinstance(value, float) else value for value in values]
        rows[row["method"]].append(rounded)
    assert rows == {
        "full-ft": [
            [60, 40, 50, None],
            [70, 10, 40, "RTE"],
            [50, 60, 55, "CoLA"],
            [65, None, None, None],
        ],
        "bitfit": [[20, None, None, None], [30, None, None, "RTE"], [10, None, None, None]],
        "lora": [[10, 20, 15, "CoLA"], [20, 20, 20, None], [30, None, None, "RTE"]],
    }
    assert table["rows"][0]["label"].endswith("learning_rate=1e-05")
    text = hifi("table search --format md").out
    assert "-<sup>a</sup>" in text and "| 40.00 | 60.00 | 50.00 |" in text


def test_a_setting_whose_runs_all_collapsed_is_not_the_best(hifi):
    """A run that predicts one class has the share of this class for a score."""
    write_search("results", "lora", "rte", [0.6, 0.5])
    # The first rate again, collapsed.
    write_search("results", "lora", "rte", [0.6], collapsed=True)
    write_search("results", "bitfit", "rte", [0.7, 0.6], collapsed=True)
    table = table_of(hifi("table search --format json"))
    best = [row["label"] for row in table["rows"] if row["cells"]["best_on"]["value"]]
    assert best == ["LoRA, learning_rate=2e-05"]
    assert (
        "a setting whose runs all collapsed to one class is not called the best" in table["notes"]
    )


def test_the_mean_is_over_seeds_and_a_setting_with_fewer_is_not_best(hifi, tmp_path):
    for seed, scores in {1: [0.5, 0.9, 0.95], 2: [0.7, 0.2]}.items():
        write_search(tmp_path, "full-ft", "rte", scores, seed, collapsed=seed == 2)
    write_search(
        tmp_path, "full-ft", "cola", [0.3]
    )  # the only one of its task so far, which has a setting as well
    all_tried = tried_settings(Study(tmp_path)).set_index("settings")
    assert [*all_tried.index[all_tried["task"] == "cola"]] == ["learning_rate=1e-05"]
    tried = all_tried[all_tried["task"] == "rte"]
    assert tried["score"].tolist() == pytest.approx([0.6, 0.55, 0.95])
    assert tried["deviation"].iloc[0] == pytest.approx(0.1 * 2**0.5)
    rows = table_of(hifi(f"table search --results-dir {tmp_path} --format json"))["rows"]
    cell = rows[0]["cells"]["rte"]
    assert (cell["value"], cell["std"]) == pytest.approx((60, 10 * 2**0.5))
    assert [row["cells"]["seeds"]["value"] for row in rows] == ["1 and 2", "2", "1"]
    collapsed = ["a run collapsed"]
    assert [row["cells"]["rte"]["notes"] for row in rows] == [collapsed, collapsed, []]
    assert tried["seeds"].tolist() == [2, 2, 1]
    assert tried["best"].tolist() == [True, False, False]


def test_a_setting_with_a_diverged_run_has_no_mean(tmp_path):
    write_search(tmp_path, "full-ft", "rte", [0.5, 0.9], seed=1)
    write_search(tmp_path, "full-ft", "rte", [0.5, None], seed=2)
    tried = tried_settings(Study(tmp_path))
    assert tried["score"].tolist() == pytest.approx([0.5, float("nan")], nan_ok=True)
    assert tried["best"].tolist() == [True, False]


def test_the_score_is_of_the_reported_epoch(tmp_path):
    for seed, (best, last) in enumerate([(0.9, 0.4), (0.8, 0.5)], start=1):
        write_search(tmp_path, "full-ft", "rte", [best], seed, report="last", last=last)
    assert tried_settings(Study(tmp_path))["score"].tolist() == pytest.approx([0.45])


def test_the_score_is_of_the_split_that_chooses(tmp_path):
    curve = [{"epoch": epoch, "selection": 0.1 * epoch, "accuracy": 0.9} for epoch in (1, 2, 3)]
    write_search(tmp_path, "full-ft", "rte", [0.9], selection="holdout", curve=curve)
    (row,) = tried_settings(Study(tmp_path)).itertuples()
    assert (row.score, row.split) == (0.2, "holdout")  # epoch 2 is the best
    write_search(tmp_path, "lora", "rte", [0.9], selection="holdout", curve=curve, report="last")
    of_last = tried_settings(Study(tmp_path)).set_index("method").loc["lora"]
    assert of_last["score"] == pytest.approx(0.3)


def test_a_record_without_the_epoch_of_its_score_stops_no_table(hifi):
    write_search("results", "full-ft", "rte", [0.9, 0.8], selection="holdout", curve=[])
    answer = hifi("table search --format json")
    assert answer.code == 0, answer.err
    assert [row["cells"]["rte"]["value"] for row in table_of(answer)["rows"]] == [None, None]


def test_a_search_is_shown_for_some_tasks_and_methods_only(hifi):
    for task in ("rte", "cola"):
        for method in ("full-ft", "lora"):
            write_search("results", method, task, [0.6, 0.7])
    write_search("results", "full-ft", "mrpc", [0.5], backbone="minilm")

    def shown(*words):
        answer = hifi("table search --format json", *words)
        assert answer.code == 0, answer.err
        tables = tables_of(answer)
        return [([*t["rows"][0]["cells"]], {row["method"] for row in t["rows"]}) for t in tables]

    assert shown("--tasks", "rte", "--methods", "lora") == [(["rte", "seeds", "best_on"], {"lora"})]
    of_mrpc = [(["mrpc", "seeds", "best_on"], {"full-ft"})]
    assert shown("--backbone", "minilm") == shown("--tasks", "mrpc") == of_mrpc
    answer = hifi("table search --backbone minilm --methods lora")
    assert answer.code == 3 and "no such run of a search in results" in answer.err
    answer = hifi("table search --methods lroa")
    assert answer.code == 2 and "unknown method 'lroa'" in answer.err


def test_the_only_value_of_a_search_is_named(hifi):
    write_search("results", "lora", "rte", [0.6])
    table = table_of(hifi("table search --format json"))
    assert [row["label"] for row in table["rows"]] == ["LoRA, learning_rate--1e-05"]


def test_a_search_names_its_table(hifi):
    for cell in cells(name="demo-search", methods=["full-ft"]):
        is_better = "learning_rate=0.002" in cell.overrides
        write_cell(cell, Path("results"), score=0.9 if is_better else 0.2)
    answer = hifi("grid demo-search --methods full-ft")
    assert answer.code == 0 and "2 of 2 done (2 before)" in answer.err
    assert "next: hifi table search" in answer.err


def test_a_grid_of_variants_names_the_table_that_shows_them(hifi):
    for cell in cells("variant=mine", methods=["full-ft"]):
        write_cell(cell, Path("results"))
    assert "next: hifi table --by variant" in hifi("grid demo --methods full-ft variant=mine").err


def test_the_usual_run_is_a_setting_of_its_search_and_no_second_time(tmp_path):
    """The demo's own learning rate and k are among those that its search tries: that cell is the usual run."""
    searched = cells(name="demo-search")
    usual = [cell for cell in searched if cell.config.variant is None]
    assert {cell.method for cell in usual} == {"full-ft", "hifi-layerwise"}
    for index, cell in enumerate(searched):
        write_cell(cell, tmp_path, score=0.5 + index / 100)
    tried = tried_settings(Study(tmp_path))
    assert len(tried) == len(searched)
    for method, rows in tried.groupby("method"):
        assert rows["settings"].is_unique and rows["best"].sum() == 1, method
    rates = tried["settings"][tried["method"] == "full-ft"]
    assert {*rates} == {"learning_rate=0.0005", "learning_rate=0.002"}


def test_where_the_encoder_lies_is_no_setting(hifi):
    """Runs of two machines are seeds of one setting; those of two encoders are not."""
    encoders = {"/home/a/bert": "1" * 64, "/home/b/bert": "1" * 64, "/home/c/bert": "2" * 64}
    for seed, (place, digest) in enumerate(encoders.items(), start=1):
        for rate in (1e-5, 2e-5):
            keys = {"learning_rate": rate, "backbone": {"name": "bert-large", "path": place}}
            variant = f"learning_rate--{rate:g}"
            more = {"keys": keys, "variant": variant, "backbone_weights": digest}
            write_run("results", "lora", "rte", seed, 0.5, **more)
    tried = tried_settings(Study(Path("results")))
    assert sorted(tried["seeds"]) == [1, 1, 2, 2]
    assert not tried["settings"].str.contains("/home").any()


def test_a_setting_that_is_left_to_the_method_is_called_default(hifi):
    """The usual run of an ablation may set none of the settings that its variants set."""
    method = {"description": "d", "label": "Mine!", "source": "s", "implementation": "bitfit"}
    # The usual run, and a variant that sets a setting.
    for variant, settings in ((None, {}), ("layers", {"biases": "layers"})):
        keys = {"settings": settings}
        where = {"protocol": "demo", "backbone": "demo", "variant": variant}
        for name in ("bitfit", "mine"):
            write_run("results", name, "rte", 1, 0.6, **where, keys=keys, config_hash=f"{variant}")
            if name == "mine":
                own = (
                    run_folder("results", **where, task="rte", method=name, seed=1) / "own/methods"
                )
                own.mkdir(parents=True)
                (own / "mine.yaml").write_text(yaml.safe_dump(method))
    tables = hifi("table search").out + hifi("table --by settings.biases").out
    for label in ("BitFit", "Mine!"):
        assert tables.count(f"{label}, settings.biases=default ") == 2
        assert tables.count(f"{label}, settings.biases=layers ") == 2
    assert "{}" not in tables and "null" not in tables and "mine," not in tables
