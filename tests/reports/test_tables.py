"""`hifi table`: which runs enter a mean, what is said about the others, and the commands of those that are missing."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from json_output import table_of, tables_of
from project_files import copy_yaml
from run_folders import run_folder
from scipy import stats
from synthetic_runs import write_run
from tiny_inputs import QUICK_WORDS, write_encoder


def rows_of(answer):
    return {(row["method"], row["source"]): row for row in table_of(answer)["rows"]}


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (["full-ft", {"method": "lora", "lable": "L"}], ["rte"], "'rows.1.lable'; did you mean 'rows.1.label'?"),
        (["full-ft"], [{"task": "rte", "metrc": "f1"}], "'columns.0.metrc'; did you mean 'columns.0.metric'?"),
    ],
)  # fmt: skip
def test_a_wrong_key_of_a_row_or_column_has_the_nearest_one(hifi, rows, columns, message):
    table = {"protocol": "hifi", "backbone": "bert-large", "rows": rows, "columns": columns}
    Path("mine.yaml").write_text(json.dumps(table))
    answer = hifi("table mine.yaml")
    assert answer.code == 2 and answer.err == f"hifi: mine.yaml: unknown key {message}\n"


def test_what_is_missing_is_one_command_of_the_tables_grid(users_table, hifi):
    """The limited run of BitFit on STS-B counts as missing: the table leaves it out."""
    words = ["--results-dir", "results"]
    (missing,) = table_of(hifi("table", users_table, *words, "--format", "json"))["missing"]
    assert missing == "8 runs: hifi grid mine.yaml"
    printed_commands = hifi(f"grid {users_table} --print --results-dir none").out
    places = itertools.product(("rte", "cola", "stsb"), ("full-ft", "bitfit", "linear-probing"))
    assert all(f"--task {task} --method {method}" in printed_commands for task, method in places)
    assert hifi(f"table {users_table}").code == 0
    assert hifi(f"table {users_table} --strict").code == 1
    assert hifi(f"table {users_table} --strict --methods full-ft").code == 0
    chosen = ["--methods", "bitfit", "--tasks", "stsb", "--seeds", "1-3", "--data-dir", "glue data"]
    (missing,) = table_of(hifi("table", users_table, *chosen, "--format", "json"))["missing"]
    assert (
        missing
        == "3 runs: hifi grid mine.yaml --tasks stsb --methods bitfit --seeds 1-3 --data-dir 'glue data'"
    )
    assert (
        "--results-dir elsewhere"
        in hifi(f"table {users_table} --results-dir elsewhere --format json").out
    )


def test_a_table_of_what_there_is_misses_nothing(hifi):
    write_run("results", "full-ft", "rte", 1, 0.7)
    answer = hifi("table --seeds 1,2 --strict --format json")
    assert answer.code == 0 and table_of(answer)["missing"] == []
    assert table_of(answer)["rows"][0]["cells"]["rte"]["notes"] == ["1 of 2 seeds"]


def test_a_run_that_does_not_count_excludes_no_runs_of_an_earlier_schema(hifi):
    for seed in (1, 2):
        write_run("results", "bitfit", "rte", seed, 0.5, schema_version=1)
    write_run("results", "full-ft", "rte", 1, 0.9, limited=True)
    cells = rows_of(hifi("table --format json"))["bitfit", "runs"]["cells"]
    assert cells["rte"]["value"] == 50.0 and not cells["rte"]["notes"]
    write_run("results", "full-ft", "rte", 2, 0.9)
    cells = rows_of(hifi("table --format json"))["bitfit", "runs"]["cells"]
    assert cells["rte"]["notes"] == ["2 runs left out: of schema 1, not 2 as others"]


def test_rows_by_a_setting_are_those_of_each_table(hifi):
    for protocol, rate in (("hifi", 1e-4), ("laptop", 1e-3)):
        config = {"learning_rate": rate}
        write_run("results", "full-ft", "rte", 1, 0.5, protocol=protocol, keys=config)
    tables = tables_of(hifi("table --by learning_rate --methods full-ft --format json"))
    rows = [[row["method"] for row in table["rows"]] for table in tables]
    assert rows == [["full-ft/learning_rate=0.0001"], ["full-ft/learning_rate=0.001"]]


def test_notes_on_runs_left_out_count_the_tables_own_tasks_and_methods(hifi):
    for method, task, seed in itertools.product(("full-ft", "bitfit"), ("rte", "cola"), (1, 2)):
        write_run("results", method, task, seed, 0.5)
        write_run("results", method, task, seed, 0.5, variant="slow")
        write_run("results", method, task, seed, 0.5, shots=16)
    shown = "--tasks rte --methods bitfit --seeds 1 --shots full"
    notes = table_of(hifi(f"table {shown} --format json"))["notes"]
    assert notes[:3] == [
        "2 16-shot runs not in this table (--shots 16 shows them)",
        "1 run with other seeds left out (--seeds includes them)",
        "4 runs of searches and other variants left out (hifi table search, or --by variant)",
    ]


def test_a_backbone_with_variants_alone_is_named_below_the_tables_of_others(hifi):
    write_run("results", "full-ft", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 1, 0.5, backbone="roberta-large", variant="slow")
    write_run("results", "full-ft", "rte", 1, 0.5, backbone="roberta-large", variant="fast")
    note = "no table of protocol hifi, backbone roberta-large: 2 runs of searches and other variants (hifi table search, or --by variant)"
    assert note in table_of(hifi("table --format json"))["notes"]
    for words in ("--by variant", "--backbone bert-large", "--tasks rte hifi-2"):
        assert "no table of" not in hifi(f"table {words}").out


def test_variants_are_counted_on_every_backbone_that_is_shown(hifi):
    for backbone, seed in itertools.product(("bert-large", "roberta-large"), (1, 2)):
        write_run("results", "full-ft", "rte", seed, 0.5, backbone=backbone)
        write_run("results", "full-ft", "rte", seed, 0.5, backbone=backbone, variant="slow")
    for words in ("table --methods full-ft", "compare full-ft"):
        printed = hifi(f"{words} --backbones bert-large,roberta-large").out
        assert "4 runs of searches and other variants left out" in printed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"epochs": 1},
            "1 run left out: different epochs (1 and 3) (--include unequal includes them)",
        ),
        (
            {"heads_sha256": "b"},
            "1 run left out: different heads (--include unequal includes them)",
        ),
        (
            {"data": {"train": "u", "validation": "v"}},
            "1 run left out: different data (--include unequal includes them)",
        ),
        (
            {"backbone_weights": "u"},
            "1 run left out: different encoder (--include unequal includes them)",
        ),
        (
            {"method_code": "c"},
            "1 run left out: different method code (--include unequal includes them)",
        ),
        (
            {"setting": "b"},
            "1 run left out: different settings (--include unequal includes them)",
        ),
        (
            {"limited": True, "setting": "limit"},
            "1 run left out: limited (--include limited includes them)",
        ),
        (
            {"status": "diverged", "scores": None, "metrics": None},
            "1 run left out: diverged, without a score",
        ),
    ],
)
def test_a_run_unlike_the_others_never_slips_into_a_mean(changes, said, hifi):
    for seed in (1, 2):
        write_run("results", "full-ft", "rte", seed, 0.5)
    write_run("results", "full-ft", "rte", 3, 0.8, **changes)
    cell = rows_of(hifi("table --format json"))["full-ft", "runs"]["cells"]["rte"]
    assert cell["value"] == 50.0
    assert said in cell["notes"]
    word = "limited" if "limited" in said else "unequal"
    cell = rows_of(hifi("table --format json --include", word))["full-ft", "runs"]["cells"]["rte"]
    if "diverged" in said:
        assert cell["value"] == 50.0
    else:
        assert cell["value"] == pytest.approx(60.0)
        assert said not in cell["notes"]
        if word == "limited":
            assert "1 run limited, included" in cell["notes"]


def test_other_rows_without_labels_are_no_other_data(hifi):
    for seed, rows in ((1, "a"), (2, "b")):
        data = {"train": "t", "validation": "v", "test": rows}
        write_run("results", "full-ft", "rte", seed, 0.4 + 0.1 * seed, data=data)
    cell = rows_of(hifi("table --format json"))["full-ft", "runs"]["cells"]["rte"]
    assert cell["value"] == pytest.approx(55) and cell["notes"] == []


def test_a_row_without_scores_leaves_the_others_their_average(hifi):
    for task, score in (("rte", 0.6), ("cola", 0.5)):
        write_run("results", "full-ft", task, 1, score)
        write_run("results", "lora", task, 1, 0.9, limited=True, setting="limit")
    rows = rows_of(hifi("table --format json"))
    assert rows["full-ft", "runs"]["cells"]["average"]["value"] == pytest.approx(55)
    assert rows["lora", "runs"]["cells"]["average"]["value"] is None


def test_methods_without_a_run_on_the_tasks_have_no_row(users_table, hifi):
    """In a table of finished runs; the rows of a named table are its own."""
    write_run("results", "lora", "mrpc", 1, 0.7)
    write_run("results", "full-ft", "mrpc", 1, 0.8, protocol="laptop", backbone="minilm")
    # One table: nothing of the other protocol was run on the task.
    found = table_of(hifi("table --tasks rte --format json"))
    shown = {row["method"] for row in found["rows"]}
    assert "full-ft" in shown and "lora" not in shown
    asked = table_of(hifi("table --tasks rte --methods full-ft,lora --format json"))
    assert [row["method"] for row in asked["rows"]] == ["full-ft", "lora"]
    named = table_of(hifi(f"table {users_table} --tasks rte --format json"))
    assert "linear-probing" in {row["method"] for row in named["rows"]}
    answer = hifi("table --tasks wnli")
    assert answer.code == 3 and "no finished run of --tasks wnli in results" in answer.err


def test_a_number_never_stands_under_another_metrics_name(hifi):
    write_run("results", "bitfit", "mrpc", 1, 0.6, primary_metric="accuracy", metrics={"f1": 0.7})
    write_run("results", "full-ft", "mrpc", 1, 0.8, primary_metric="f1")
    content = table_of(hifi("table --format json"))
    assert content["headings"]["mrpc"] == "MRPC (Acc.)"
    cells = {row["method"]: row["cells"]["mrpc"] for row in content["rows"]}
    assert cells["bitfit"]["value"] == 60.0 and cells["full-ft"]["value"] is None
    assert "0 of 1 seeds: no accuracy stored for this score" in cells["full-ft"]["notes"]
    words = ("--tasks", "mrpc", "--methods", "full-ft", "--metrics", "matthews", "--seeds", "1")
    assert hifi("table", "hifi-2", *words, "--strict").code == 0, "the run is there"


def test_seeds_beyond_the_tables_own_are_left_out_with_a_word(users_table, hifi):
    write_run("results", "full-ft", "rte", 9, 0.1)
    table = table_of(hifi(f"table {users_table} --format json"))
    assert table["rows"][0]["cells"]["rte"]["value"] == pytest.approx(87.5)
    assert "1 run with other seeds left out (--seeds includes them)" in table["notes"]
    cell = rows_of(hifi(f"table {users_table} --seeds 9 --format json"))["full-ft", "runs"][
        "cells"
    ]["rte"]
    assert cell["value"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"selection": "holdout"}, "selection"),
        ({"data": {"train": "u", "validation": "v"}}, "data"),
    ],
)
def test_a_cell_under_other_conditions_is_shown_apart(changes, said, hifi):
    for task in ("rte", "cola"):
        for method, score in (("bitfit", 0.9), ("full-ft", 0.6), ("lora", 0.7)):
            write_run(
                "results",
                method,
                task,
                1,
                score,
                **(changes if (method, task) == ("bitfit", "rte") else {}),
            )
    rows = rows_of(hifi("table --format json"))
    cell = rows["bitfit", "runs"]["cells"]["rte"]
    assert cell["value"] == 90.0 and cell["notes"][0].startswith(
        f"not compared with the column's other runs, which differ in {said}"
    )
    lines = {
        line.split("|")[1].strip(): line.split("|")[2:5]
        for line in hifi("table --format md").out.splitlines()
        if "|" in line
    }
    marks = {
        name: ["1" if "**" in cell else "2" if "<u>" in cell else "" for cell in cells]
        for name, cells in lines.items()
    }
    assert (marks["BitFit"], marks["Full-FT"], marks["LoRA"]) == (
        ["1", "", ""],
        ["", "2", "2"],
        ["2", "1", "1"],
    )  # CoLA, RTE, Avg.


def test_protocols_backbones_and_shots_stand_in_tables_of_their_own(hifi):
    write_run("results", "bitfit", "rte", 1, 0.9, protocol="laptop")
    write_run("results", "bitfit", "rte", 1, 0.7)
    write_run("results", "bitfit", "rte", 1, 0.8, backbone="minilm")
    for shots, score in ((16, 0.5), (4, 0.2)):
        write_run("results", "bitfit", "rte", 1, score, shots=shots)

    def shown(*words):
        tables = tables_of(hifi("table", *words, "--format", "json"))
        settings = [
            re.search(r"\(protocol (.*), best epoch\)", table["title"])[1] for table in tables
        ]
        scores = [table["rows"][0]["scores"]["rte"] for table in tables]
        return {setting: score for setting, (score,) in zip(settings, scores, strict=True)}

    assert [*shown().items()] == [
        ("hifi, backbone bert-large, 16-shot", 50.0),
        ("hifi, backbone bert-large, 4-shot", 20.0),
        ("hifi, backbone bert-large", 70.0),
        ("hifi, backbone minilm", 80.0),
        ("laptop, backbone bert-large", 90.0),
    ]
    assert [*shown("--backbone", "minilm").values()] == [80.0]
    assert [*shown("--shots", "4").values()] == [20.0]


@pytest.mark.parametrize(
    ("words", "scores", "other", "command"),
    [
        (["mine.yaml"], [87.0, 88.0], "16", "hifi grid mine.yaml --tasks rte"),
        (["mine.yaml", "--shots", "16"], [20.0], "full", "mine.yaml --tasks rte shots=16"),
        (["hifi-2-fewshot"], [30.0], "full", "hifi grid hifi-2-fewshot --tasks rte"),
        (["hifi-2-fewshot", "--shots", "full"], [90.0], "16", "--tasks rte shots=null"),
    ],
)
def test_a_layout_takes_the_runs_of_its_protocols_shots(
    words, scores, other, command, users_table, hifi
):
    write_run("results", "full-ft", "rte", 1, 0.2, shots=16)
    write_run("results", "full-ft", "rte", 1, 0.3, shots=16, protocol="hifi-fewshot")
    write_run("results", "full-ft", "rte", 1, 0.9, protocol="hifi-fewshot")
    table = table_of(hifi("table", *words, "--tasks", "rte", "--format", "json"))
    assert table["rows"][0]["scores"]["rte"] == pytest.approx(scores)
    assert (
        f"{other}-shot run" in table["notes"][0] and f"--shots {other} shows" in table["notes"][0]
    )
    assert table["missing"][0].endswith(command)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("best", {"best": [40.0, 40.0], "last": [30.0], "max": [50.0], None: [40.0, 40.0]}),
        ("max", {"best": [40.0, 40.0], "last": [30.0], "max": [50.0], None: [50.0]}),
    ],
)
def test_another_metric_at_another_epoch_comes_from_the_epochs_or_not_at_all(
    report, expected, users_table, hifi
):
    """Of a protocol that reports the maximum it is the metric's own, and the best is the kept model's."""
    curve = [
        {"epoch": epoch, "spearman": 0.9, "pearson": value}
        for epoch, value in ((1, 0.5), (2, 0.4), (3, 0.3))
    ]
    for seed, lines in ((1, curve), (2, [])):
        kept = {"metrics": {"pearson": 0.4}, "curve": lines, "report": report}
        write_run("results", "full-ft", "stsb", seed, 0.9, **kept)
    for score, values in expected.items():
        words = ["--score", score] if score else []
        row = rows_of(hifi("table", users_table, *words, "--format", "json"))["full-ft", "runs"]
        assert row["scores"]["stsb.pearson"] == values
        lost = "1 of 2 seeds: no pearson stored for this score"
        assert (lost in row["cells"]["stsb.pearson"]["notes"]) is (len(values) == 1)


def test_other_metrics_of_a_run_that_reports_its_last_epoch_are_of_that_epoch(hifi):
    kept = {"last": 0.8, "report": "last", "metrics": {"pearson": 0.7}}
    write_run("results", "full-ft", "stsb", 1, 0.9, **kept)
    answer = hifi("table --metrics score,pearson --format json")
    cells = rows_of(answer)["full-ft", "runs"]["cells"]
    assert (cells["stsb"]["value"], cells["stsb.pearson"]["value"]) == (80, 70)


def test_a_laptops_runs_in_a_papers_layout(hifi):
    write_run("results", "full-ft", "mrpc", 1, 0.8, protocol="laptop", backbone="minilm")
    answer = hifi(
        "table hifi-2 --protocol laptop --backbone minilm --tasks cola,mrpc --seeds 1 --format json"
    )
    content = table_of(answer)
    assert list(content["headings"].values())[:2] == [
        "CoLA (Matt.)",
        "MRPC (F1)",
    ]  # the paper's order
    assert content["rows"][0]["scores"] == {"mrpc": [80.0]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hifi-2", "--tasks", "mprc"], "did you mean 'mrpc'?"),
        (["hifi-2", "--methods", "full-tf"], "did you mean 'full-ft'?"),
        (["--score", "first"], "'first' is not one of 'best', 'last', 'max'"),
        (["--include", "all"], "'all' is not one of limited, unequal"),
        (["--by", "lerning_rate"], "no run has this setting; did you mean 'learning_rate'?"),
        (["hifi-2", "--backbones", "a,b"], "under one method: --method full-ft"),
        (["--shots", "0"], "--shots 0: a number of training rows per class, or full, is required"),
        (
            ["odd.yaml"],
            "kind must be 'scores', 'settings', 'costs' or 'statistics', not 'score'",
        ),
        (["worse.yaml"], "rows.0.metod"),
        (["lost.yaml", "--published"], "no table 'fullshot'; did you mean 'full-shot'?"),
    ],
)
def test_wrong_usage(words, message, hifi):
    Path("odd.yaml").write_text("{kind: score, protocol: hifi, backbone: minilm}")
    Path("worse.yaml").write_text("{protocol: hifi, backbone: minilm, rows: [{metod: full-ft}]}")
    Path("lost.yaml").write_text("{protocol: hifi, backbone: minilm, published: hifi/fullshot}")
    write_run("results", "full-ft", "rte", 1, 0.5, keys={"learning_rate": 1e-5})
    answer = hifi("table", *words)
    assert answer.code == 2 and message in answer.err and len(answer.err.splitlines()) == 1


def test_paths_of_own_files_serve_tables_comparisons_and_grids(hifi):
    copies = {
        "tasks/rte": "mytask.yaml",
        "methods/full-ft": "mymethod.yaml",
        "protocols/hifi": "myprotocol.yaml",
    }
    for source, copy in copies.items():
        copy_yaml(hifi, source, copy)
    spec = {
        "protocol": "myprotocol.yaml",
        "backbone": "bert-large",
        "rows": ["mymethod.yaml", "bitfit"],
        "columns": ["mytask.yaml"],
    }
    Path("mine.yaml").write_text(json.dumps(spec))
    Path("grid.yaml").write_text("table: mine.yaml\n")
    assert "--task mytask.yaml --method mymethod.yaml" in hifi("grid grid.yaml --print").out
    for method, score in (("mymethod", 0.7), ("bitfit", 0.6)):
        write_run("results", method, "mytask", 1, score, protocol="myprotocol")
    table = table_of(hifi("table mine.yaml --format json"))
    assert [row["cells"]["mytask"]["value"] for row in table["rows"]] == [70, 60] and not table[
        "missing"
    ]
    of_options = ("--protocol", "myprotocol.yaml", "--tasks", "mytask.yaml")
    (row,) = table_of(hifi("table", *of_options, "--methods", "mymethod.yaml", "--format", "json"))[
        "rows"
    ]
    assert row["cells"]["mytask"]["value"] == 70
    answer = hifi("compare mymethod.yaml bitfit", *of_options)
    assert answer.code == 0 and "1 pair" in answer.out, answer.err
    claim = {"kind": "difference", "text": "t", "where": "w", "second": "bitfit"}
    claims = {"first": claim | {"first": "mymethod"}}
    of_runs = {"protocol": "myprotocol.yaml", "backbone": "bert-large", "tasks": ["mytask.yaml"]}
    Path("claims.yaml").write_text(json.dumps({"description": "d", **of_runs, "claims": claims}))
    # All titles have the name that runs have.
    assert "d (protocol myprotocol, backbone bert-large): " in hifi("claims claims.yaml").out


def test_runs_of_a_protocol_that_is_not_given_are_not_compared_with_it(hifi):
    """A study of others may lack the protocol; its runs may have other settings."""
    copy_yaml(hifi, "protocols/hifi", "theirs.yaml")
    write_run("results", "full-ft", "rte", 1, 0.7, protocol="theirs", keys={"learning_rate": 1e-4})
    unknown = "whether these runs have the settings of protocol theirs is not known"
    for words in ("", " --protocol theirs"):
        notes = table_of(hifi(f"table{words} --format json"))["notes"]
        assert any(note.startswith(unknown) for note in notes)
    table = hifi("table --protocol theirs.yaml").out
    assert unknown not in table
    assert "1 run with other settings than the protocol's: learning_rate 0.0001" in table
    write_run("results", "full-ft", "rte", 1, 0.7)
    assert "is not known" not in hifi("table --protocol hifi").out


def test_texts_that_were_cut_are_counted_in_the_run_and_one_line_of_the_table(tiny, hifi, tmp_path):
    trained = tiny("train --method full-ft max_length=8")
    assert "train texts are longer than max_length=8 and cut" in trained.err
    result = json.loads((run_folder(tmp_path / "results") / "results.json").read_text())
    validation = result["truncated"]["reported"]
    assert result["truncated"]["train"] and result["truncated"]["selection"] == validation > 0
    text = hifi("table").out
    assert text.count("longer than max_length and cut: RTE ") == 1 and f"{validation} of " in text


def test_each_value_of_a_setting_has_a_row(hifi):
    for rank, score in ((8, 0.7), (16, 0.8)):
        of_variant = {"variant": f"rank-{rank}", "keys": {"settings": {"r": rank}}}
        for method in ("lora", "dora"):
            write_run("results", method, "rte", 1, score, **of_variant, config_hash=f"{rank}")
    write_run("results", "lora", "rte", 1, 0.6, keys={"settings": {"r": 4}})
    write_run("results", "bitfit", "rte", 1, 0.5)

    def shown(*words):
        rows = table_of(hifi("table", *words, "--format", "json"))["rows"]
        return {row["method"]: row["rte"] for row in rows}

    assert shown("--by", "settings.r", "--methods", "lora") == pytest.approx(
        {"lora/settings.r=16": 80, "lora/settings.r=4": 60, "lora/settings.r=8": 70}
    )
    by_name = shown("--by", "variant")
    assert by_name["lora"] == 60 and by_name["dora/rank-8"] == 70 and len(by_name) == 6


def test_a_key_of_heads_has_rows_of_the_methods_that_tune_heads(hifi):
    """Every configuration has heads.k, and Full-FT reads it as little as LoRA does."""
    for k, score in ((1, 0.7), (3, 0.8)):
        heads = {"rank": "pagerank", "k": k, "seed": None}
        variant = None if k == 3 else f"heads.k--{k}"
        keys = {"variant": variant, "keys": {"heads": heads}, "heads": [[0], [1]]}
        write_run("results", "hifi-layerwise", "rte", 1, score, **keys, config_hash=f"{k}")
    for method in ("full-ft", "lora"):
        heads = {"rank": "pagerank", "k": 3, "seed": None}
        write_run("results", method, "rte", 1, 0.6, keys={"heads": heads})

    def shown(*words):
        table = table_of(hifi("table --by heads.k --format json", *words))
        return {row["method"]: row["rte"] for row in table["rows"]}, table["notes"]

    by_k = {"hifi-layerwise/heads.k=1": 70, "hifi-layerwise/heads.k=3": 80}
    rows, notes = shown()
    assert rows == pytest.approx(by_k)
    assert "left out, because they have no heads.k: full-ft, lora (--methods shows them)" in notes
    rows, notes = shown("--methods", "hifi-layerwise,full-ft")
    assert rows == pytest.approx({**by_k, "full-ft": 60})
    assert not any("have no heads.k" in note for note in notes)
    answer = hifi("table --by scoring.warm_steps")
    assert answer.code == 2


def test_an_encoder_beside_a_decoder(hifi, encoders, data, tmp_path):
    decoder = write_encoder(tmp_path / "tiny-qwen3", "qwen3")
    where = ["--task", "rte", "--method", "linear-probing", "--data-dir", data, "--backbone"]
    for backbone in (encoders["bert"], decoder):
        assert hifi("train", *where, backbone, *QUICK_WORDS).code == 0
    spec = {"protocol": "hifi", "backbone": "bert-large", "rows": ["linear-probing"]}
    spec |= {"backbones": [str(encoders["bert"]), str(decoder)], "columns": ["rte", "cola"]}
    Path("mine.yaml").write_text(json.dumps(spec))
    table = table_of(hifi("table mine.yaml --format json"))
    assert [row["label"] for row in table["rows"]] == ["tiny-bert", "tiny-qwen3"]
    assert "method linear-probing" in table["title"]
    for row, backbone, command in zip(
        table["rows"], spec["backbones"], table["missing"], strict=True
    ):
        run = run_folder(backbone=row["method"], method="linear-probing") / "results.json"
        assert row["rte"] == 100 * json.loads(run.read_text())["scores"]["best"]
        assert command == f"1 run: hifi grid mine.yaml --backbone {backbone}"
    words = ["--method", "linear-probing", "--backbones", f"{decoder},{encoders['bert']}"]
    found = table_of(hifi("table", *words, "--format", "json"))["rows"]
    assert [row["rte"] for row in found] == [row["rte"] for row in table["rows"]][::-1]


def test_intervals_take_the_place_of_deviations(hifi):
    scores = {
        "full-ft": [0.61, 0.92, 0.97],
        "lora": [0.6, 0.62, 0.61],
        "adapter": [0.02, 0.05, 0.3],
        "bitfit": [0.5],
    }
    for method, of_method in scores.items():
        for seed, score in enumerate(of_method, start=1):
            matthews = {"matthews": score - 1}
            write_run("results", method, "rte", seed, score, metrics=matthews)
    table = table_of(hifi("table --intervals --format json"))
    rows = {row["method"]: row for row in table["rows"]}
    for method in ("full-ft", "lora", "adapter"):
        percent = 100 * np.array(scores[method])
        low, high = stats.t.interval(0.95, 2, percent.mean(), stats.sem(percent))
        # An accuracy is from 0 to 100 %.
        ends = [rows[method]["rte_low"], rows[method]["rte_high"]]
        assert ends == pytest.approx([max(low, 0), min(high, 100)])
    assert rows["bitfit"]["rte_low"] is None
    # The ends of a column's own metric are those of that metric: a correlation may be negative.
    of_metric = table_of(hifi("table --intervals --metrics matthews --format json"))["rows"]
    low, high = stats.t.interval(0.95, 2, -39, stats.sem([-40, -38, -39]))
    cells = next(row for row in of_metric if row["method"] == "lora")
    assert [cells["rte.matthews_low"], cells["rte.matthews_high"]] == pytest.approx([low, high])
    assert "mean [95 % t-interval for new seeds] over 1 to 3 seeds" in table["notes"]
    text = hifi("table --intervals").out
    assert "61.0 [58.5, 63.5]" in text and "±" not in text
    assert "61.0} [58.5, 63.5]" in hifi("table --intervals --format tex").out
    assert "rte_low" not in table_of(hifi("table --format json"))["rows"][0]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("search --intervals", "--intervals"),
        ("search --strict", "--strict"),
        ("search --by learning_rate", "--by"),
        ("search --seeds 1 --metrics f1 --published", "--seeds and --metrics and --published"),
        ("search --backbones minilm,bert-base --include limited", "--include and --backbones"),
        ("confusion --intervals", "--intervals"),
        ("per-class --score last --by heads.k --seeds 1", "--by and --score"),
        ("cost --intervals --seeds 1 --strict", "--intervals and --strict"),
        ("hifi-1 --score last --metrics f1", "--score and --metrics"),
        ("hifi-5 --seeds 1 --shots 16", "--seeds and --shots"),
        ("hifi-4 --include unequal --published", "--include"),
    ],
)
def test_an_option_that_a_kind_of_table_does_not_read_is_refused(hifi, words, refused):
    write_run("results", "full-ft", "rte", 1, 0.6)
    answer = hifi(f"table {words}")
    assert answer.code == 2
    assert f" does not read {refused}: leave " in answer.err


def test_a_table_without_runs_says_which_backbones_there_are(hifi):
    write_run("results", "full-ft", "rte", 1, 0.6, protocol="laptop", backbone="minilm")
    of_other = table_of(hifi("table hifi-2 --protocol laptop --format json"))["notes"]
    text = "no run of protocol laptop has backbone bert-large; there are runs with minilm: --backbone minilm"
    assert text in of_other
    words = "table hifi-2 --protocol laptop --backbone minilm --format json"
    assert not any("--backbone" in note for note in table_of(hifi(words))["notes"])


def test_a_packed_study_names_commands_that_run(hifi):
    """No new run is trained into it: its runs are copied first."""
    write_run("results", "full-ft", "rte", 1, 0.5)
    Path("mine.yaml").write_text(
        json.dumps(
            {
                "protocol": "hifi",
                "backbone": "bert-large",
                "rows": ["full-ft", "lora"],
                "columns": ["rte"],
            }
        )
    )
    assert hifi("results pack results --out study").code == 0
    (missing,) = table_of(hifi("table mine.yaml --results-dir study --format json"))["missing"]
    merge, grid = missing.partition(": ")[2].split(", then ")
    assert merge == "hifi results merge study --results-dir results"
    assert grid == "hifi grid mine.yaml --results-dir results"
    assert hifi(*merge.split()[1:]).code == 0
    # The record above is no real one: the grid is asked where there is none.
    shutil.rmtree("results")
    assert hifi(*grid.split()[1:], "--print").out.count("hifi train") == 2
    claims = hifi("claims hifi/above-full-ft --results-dir study").out
    assert "hifi results merge study --results-dir results, then hifi grid claims-hifi" in claims


def test_each_number_of_seeds_has_a_footnote_of_its_own(hifi):
    """A mean over one seed is not to be taken for one over three."""
    for method, seeds in (("full-ft", 4), ("lora", 3), ("bitfit", 1)):
        for seed in range(seeds):
            write_run("results", method, "rte", seed, 0.5 + seed / 100)
    text = hifi("table").out
    assert ": 3 of 4 seeds\n" in text and ": 1 of 4 seeds\n" in text


def test_a_row_of_a_setting_has_the_methods_label_and_the_key(hifi):
    for rank in (8, 16):
        of_variant = {"variant": f"rank-{rank}", "keys": {"settings": {"r": rank}}}
        write_run("results", "lora", "rte", 1, 0.6, **of_variant, config_hash=f"{rank}")
    text = hifi("table --by settings.r").out
    assert "LoRA, settings.r=8 " in text and "LoRA, settings.r=16 " in text
